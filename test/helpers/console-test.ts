import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import type { ApiClient } from './api.ts';
import { ConsolePage } from './console-page.ts';
import type { Environment } from './daemon.ts';
import { CuttableProxy } from './cuttable-proxy.ts';
import { freePorts } from './ports.ts';
import { containerSettings } from './sandboxes.ts';
import { Stack } from './stack.ts';

export interface ConsoleContext {
  /** For what the tests write; profiles of browsers are in it. */
  readonly directory: string;
  readonly stack: Stack;
  readonly api: ApiClient;
  readonly page: ConsolePage;
  /** Between the browser and control. */
  readonly toControl: CuttableProxy;
  /** Between the browser and the agent. */
  readonly toAgent: CuttableProxy;
}

/**
 * Tests of a file that share a stack, whose sandboxes are containers, and a browser in which their
 * account is signed in to the console.
 * @param settings of the stack, or what makes them with a directory for its files
 */
export function consoleTest(
  settings: Environment | ((directory: string) => Promise<Environment>) = {},
): TestFn<ConsoleContext> {
  const test = anyTest as TestFn<ConsoleContext>;
  test.serial.before(async (t) => {
    const directory = await mkdtemp(join(tmpdir(), 'berth-test-console-'));
    Object.assign(t.context, { directory });
    const [control = 0, agent = 0] = await freePorts(2);
    const toControl = await CuttableProxy.to(control);
    const toAgent = await CuttableProxy.to(agent);
    Object.assign(t.context, { toControl, toAgent });
    const origin = `http://127.0.0.1:${toControl.port}`;
    const stack = await Stack.start({
      ...containerSettings(),
      CONTROL_PORT: String(control),
      PUBLIC_BASE_URL: origin,
      ALLOWED_ORIGINS: origin,
      AGENT_PORT: String(agent),
      AGENT_PUBLIC_URL: `http://127.0.0.1:${toAgent.port}`,
      ...(typeof settings === 'function' ? await settings(directory) : settings),
    });
    Object.assign(t.context, { stack });
    const api = await stack.newClient();
    const page = await ConsolePage.open(directory, origin);
    Object.assign(t.context, { api, page });
    const size = { width: 1280, height: 800, deviceScaleFactor: 1, mobile: false };
    await page.page.send('Emulation.setDeviceMetricsOverride', size);
    await page.signInAs(api);
  });
  test.after.always(async (t) => {
    await endConsole(t.context);
  });
  return test;
}

/** Ends what there is of a console's test: each part, also when another one cannot be ended. */
export async function endConsole(context: Partial<ConsoleContext>): Promise<void> {
  const { directory, stack, page, toControl, toAgent } = context;
  await using ending = new AsyncDisposableStack();
  if (directory !== undefined) ending.defer(() => rm(directory, { recursive: true }));
  ending.use(toAgent);
  ending.use(toControl);
  if (stack !== undefined) {
    ending.defer(async () => {
      // Sandboxes outlive an agent that a test has ended, and frozen ones are paused: it removes
      // both.
      if (!stack.agent.isRunning) await stack.startAgent();
      await stack.stop();
    });
  }
  ending.use(page);
}

/** No exception, and nothing that the content security policy has refused. */
export const checkNoProblems = (t: ExecutionContext<{ readonly page: ConsolePage }>): void => {
  t.deepEqual(t.context.page.page.problems.splice(0), []);
};
