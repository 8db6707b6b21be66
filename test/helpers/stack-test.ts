import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from './api.ts';
import type { Environment } from './daemon.ts';
import { Stack } from './stack.ts';

export interface StackContext {
  readonly stack: Stack;
  /** An account of the file's own. */
  readonly api: ApiClient;
}

/**
 * Tests of a file that share one stack, started before the first and stopped after the last of
 * them.
 * @param prepare makes what they share besides, and puts it into their context
 */
export function stackTest<Extra extends object = object>(
  settings?: Environment,
  prepare?: (context: StackContext) => Promise<Extra>,
): TestFn<StackContext & Extra> {
  const test = anyTest as TestFn<StackContext & Extra>;
  test.before(async (t) => {
    const stack = await Stack.start(settings);
    // At once: what follows may fail, and the stack must be stopped then too.
    Object.assign(t.context, { stack });
    const api = await stack.newClient();
    Object.assign(t.context, { api });
    if (prepare !== undefined) Object.assign(t.context, await prepare({ stack, api }));
  });
  test.after.always(async (t) => {
    await (t.context as Partial<StackContext>).stack?.stop();
  });
  return test;
}
