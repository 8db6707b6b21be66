import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test from 'ava';

const run = promisify(execFile);
const root = join(import.meta.dirname, '../..');

/** Prints the packages of OpenTelemetry that a module and all that it imports ask for. */
const WATCH = `data:text/javascript,${encodeURIComponent(`
  import { registerHooks } from 'node:module';
  registerHooks({
    resolve: (name, context, next) => {
      if (name.startsWith('@opentelemetry/')) process.stdout.write(name + '\\n');
      return next(name, context);
    },
  });
`)}`;

async function telemetryOf(module: string): Promise<string[]> {
  const script = `await import(${JSON.stringify(join(root, module))}); process.exit();`;
  const command = ['--import', WATCH, '--input-type=module', '-e', script];
  const NODE_COMPILE_CACHE = join(root, '.local/compile-cache');
  const { stdout } = await run(process.execPath, command, { env: { NODE_COMPILE_CACHE } });
  return stdout.split('\n').filter((name) => name !== '');
}

test('no package of OpenTelemetry is loaded until traces are switched on', async (t) => {
  t.deepEqual(await telemetryOf('control/app.ts'), []);
  t.deepEqual(await telemetryOf('agent/control-link/job-worker.ts'), []);
  t.deepEqual(await telemetryOf('shared/tracing/observe.ts'), []);
  t.true((await telemetryOf('shared/tracing/start-tracing.ts')).length > 0);
});
