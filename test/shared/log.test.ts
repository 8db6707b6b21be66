import test from 'ava';
import { execFile } from 'node:child_process';
import { readFile, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { setTimeout as sleep } from 'node:timers/promises';
import { temporaryDirectory } from '../helpers/temporary.ts';
import { waitFor } from '../helpers/wait.ts';

const run = promisify(execFile);

/** The events that a separate process logs when it runs these statements with a logger `log`. */
async function logOf(statements: string, level = 'info'): Promise<Record<string, unknown>[]> {
  const file = new URL('../../shared/log.ts', import.meta.url).href;
  const script = `
    import { createLogger } from '${file}';
    const log = createLogger('test', { nodeId: 'node-1' }, { level: '${level}' });
    ${statements}
    log.flush();`;
  const { stdout } = await run(process.execPath, ['--input-type=module', '-e', script]);
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

test('many lines of any characters are written whole and in order', async (t) => {
  const events = await logOf(`
    for (let i = 0; i < 3_000; i += 1) log.info({ i }, 'ü€😀'.repeat(i % 50));`);
  t.is(events.length, 3_000);
  t.true(events.every(({ i, msg }, at) => i === at && msg === 'ü€😀'.repeat(at % 50)));
});

const contents = (name: string): Promise<string> => readFile(name, 'utf8').catch(() => '');

test('a log in a file goes on in a new one when the file is renamed', async (t) => {
  await using directory = await temporaryDirectory();
  const path = join(directory.path, 'log');
  const file = new URL('../../shared/log.ts', import.meta.url).href;
  const script = `
    import { existsSync } from 'node:fs';
    import { setTimeout as sleep } from 'node:timers/promises';
    import { createLogger } from '${file}';
    const log = createLogger('test', {}, { level: 'info', path: '${path}' });
    log.info('first');
    while (!existsSync('${path}.1')) await sleep(50);
    while (!existsSync('${path}')) { log.info('between'); await sleep(50); }
    log.info('last');
    await sleep(500);`;
  const ended = run(process.execPath, ['--input-type=module', '-e', script], {
    timeout: 60_000,
  });
  await waitFor('the first line', async () => (await contents(path)).includes('first'));
  // The logger must have seen the file once to notice that it is another.
  await sleep(2_500);
  await rename(path, `${path}.1`);
  const { stdout } = await ended;
  t.is(stdout, '');
  t.true((await contents(`${path}.1`)).includes('first'));
  t.true((await contents(path)).includes('last'));
});
