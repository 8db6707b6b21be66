import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from './api.ts';
import type { Environment } from './daemon.ts';
import { Failpoints } from './sandboxes.ts';
import { Stack } from './stack.ts';

export interface CrashContext {
  readonly stack: Stack;
  readonly api: ApiClient;
  readonly points: Failpoints;
}

/** Tests of a file that share one stack, whose agent they kill at failpoints. */
export function crashTest(settings: Environment): TestFn<CrashContext> {
  const test = anyTest as TestFn<CrashContext>;
  test.before(async (t) => {
    const points = new Failpoints(join(process.cwd(), `.local/crash-${process.pid}`));
    const stack = await Stack.start({ ...settings, ...points.settings });
    Object.assign(t.context, { stack, points, api: await stack.newClient() });
  });
  test.after.always(async (t) => {
    await t.context.points.disarm();
    await t.context.stack.stop();
    await t.context.points.takeReached();
  });
  return test;
}
