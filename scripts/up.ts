/** Starts the stack, shows that it works, and stays (or leaves it running with --detach). */
import { spawn } from 'node:child_process';
import { closeSync, mkdirSync, openSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { provideClientEnv } from './client-env.ts';
import { runDemo } from './demo.ts';
import { readEnvFile, required } from './env-file.ts';
import { paths } from './local-paths.ts';
import { endProcess, identify } from '../shared/process-id.ts';
import { readStackState } from './stack-state.ts';
import { READY_WITHIN_MS, STOP_WITHIN_MS, Supervisor } from './supervisor.ts';

const say = (line: string) => console.log(`berth: ${line}`);

async function welcome(): Promise<void> {
  const config = await readEnvFile(paths.config);
  await runDemo(await provideClientEnv(config));
  say(`running at ${required(config, 'PUBLIC_BASE_URL')}; settings for clients: .local/env`);
}

/** Runs until a signal stops the stack. A second signal kills what has not stopped yet. */
async function upInForeground(): Promise<void> {
  const supervisor = await Supervisor.claim(say);
  let signals = 0;
  const stoppedBySignal = new Promise<void>((resolve, reject) => {
    const onSignal = () => {
      signals += 1;
      if (signals > 1) return supervisor.killAll();
      say('stopping');
      supervisor.stop().then(resolve, reject);
    };
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, onSignal);
  });
  try {
    say('starting redis, control and agent');
    await supervisor.start();
    await welcome();
    say('Ctrl-C stops everything');
  } catch (error) {
    await supervisor.stop();
    if (signals === 0) throw error;
  }
  await stoppedBySignal;
  say('stopped');
}

async function upDetached(): Promise<void> {
  const pid = await startDetached();
  try {
    await welcome();
  } catch (error) {
    const id = identify(pid);
    if (id !== undefined) await endProcess(id, { withinMs: STOP_WITHIN_MS });
    throw error;
  }
  say('./scripts/down stops everything');
}

/** Starts a supervisor and waits until the stack is ready. @returns the supervisor's pid */
async function startDetached(): Promise<number> {
  const logPath = join(paths.logs, 'supervisor.log');
  mkdirSync(paths.logs, { recursive: true });
  const log = openSync(logPath, 'w', 0o600);
  const child = spawn(process.execPath, [join(import.meta.dirname, 'supervisor.ts')], {
    detached: true,
    stdio: ['ignore', log, log, 'ipc'],
  });
  closeSync(log);
  const { pid } = child;
  const ready = await new Promise<boolean>((resolve) => {
    child.once('message', () => resolve(true));
    child.once('error', () => resolve(false));
    child.once('exit', () => resolve(false));
  });
  if (!ready || pid === undefined) throw new Error((await readFile(logPath, 'utf8')).trimEnd());
  child.disconnect();
  child.unref();
  return pid;
}

/** Waits until a stack that another `up` has just started is ready. */
async function waitForRunning(): Promise<void> {
  const deadline = performance.now() + READY_WITHIN_MS;
  for (;;) {
    const { state, isRunning } = await readStackState();
    if (isRunning && state?.ready === true) return;
    if (!isRunning || performance.now() > deadline) {
      throw new Error('the stack that was being started did not get ready; see .local/log');
    }
    await sleep(100);
  }
}

const { values } = parseArgs({ options: { detach: { type: 'boolean', default: false } } });
try {
  if ((await readStackState()).isRunning) {
    say('already running in this checkout');
    await waitForRunning();
    await welcome();
  } else if (values.detach) {
    await upDetached();
  } else {
    await upInForeground();
  }
  process.exit(0);
} catch (error) {
  console.error(`berth: ${error instanceof Error ? error.message : String(error)}`);
  process.exit(1);
}
