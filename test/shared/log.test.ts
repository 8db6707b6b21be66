import test from 'ava';
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** The events that a separate process logs when it runs these statements with a logger `log`. */
async function logOf(statements: string, level = 'info'): Promise<Record<string, unknown>[]> {
  const file = new URL('../../shared/log.ts', import.meta.url).href;
  const script = `
    import { createLogger } from '${file}';
    const log = createLogger('test', { nodeId: 'node-1' });
    ${statements}
    log.flush();`;
  const { stdout } = await run(process.execPath, ['--input-type=module', '-e', script], {
    env: { LOG_LEVEL: level },
  });
  return stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>);
}

test('an event is one line of JSON with a time, a level and the service', async (t) => {
  const [event = {}, ...more] = await logOf(`log.info({ diskId: 'd' }, 'a:b'); log.debug('x');`);
  t.is(more.length, 0);
  t.like(event, { level: 'info', service: 'test', nodeId: 'node-1', diskId: 'd', msg: 'a:b' });
  t.false(Number.isNaN(Date.parse(String(event['time']))));
});

test('fields that hold secrets are removed', async (t) => {
  const events = await logOf(
    `log.info({ authorization: 'secret', token: 'secret', command: 'secret' }, 'request');`,
  );
  t.false(JSON.stringify(events).includes('secret'));
});

test('only the message, code and stack of an error and its causes are logged', async (t) => {
  const [event] = await logOf(`
    const cause = Object.assign(new TypeError('the cause'), { command: { args: ['secret'] } });
    const error = new Error('the failure', { cause });
    log.error({ err: Object.assign(error, { code: 'EFAIL', command: { args: ['secret'] } }) }, 'x');
    log.warn({ err: 'a text' }, 'y');`);
  t.like(event, {
    level: 'error',
    err: {
      type: 'Error',
      message: 'the failure',
      code: 'EFAIL',
      cause: { type: 'TypeError', message: 'the cause' },
    },
  });
  t.false(JSON.stringify(event).includes('secret'));
});
