import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import {
  QmpClient,
  QmpCommandError,
  type QmpEvent,
  QmpUnavailableError,
} from '../../../../../agent/machines/qemu/process/qmp-client.ts';
import { qemuProgram } from '../../../../../agent/machines/qemu/process/qemu-arguments.ts';
import { temporaryDirectory } from '../../../../helpers/temporary.ts';
import { waitFor } from '../../../../helpers/wait.ts';

async function withDirectory(body: (path: string) => Promise<void>): Promise<void> {
  await using directory = await temporaryDirectory();
  await body(directory.path);
}

const says =
  (text: string) =>
  (socket: Socket): void =>
    void socket.resume().write(text);

/** Greets and answers the first command. */
function greets(socket: Socket): void {
  socket.write(GREETING);
  socket.once('data', () => socket.write('{"return": {}, "id": 1}\n'));
}

const GREETING = '{"QMP": {"version": {}, "capabilities": []}}\n';

async function connected(path: string): Promise<QmpClient> {
  let client: QmpClient | undefined;
  await waitFor('the monitor', async () => {
    client = await QmpClient.open(path).catch(() => undefined);
    return client !== undefined;
  });
  return client as QmpClient;
}

/** A QEMU without any machine, and the path of its monitor. */
async function withQemu(body: (path: string, qemu: ChildProcess) => Promise<void>): Promise<void> {
  await withDirectory(async (directory) => {
    const path = join(directory, 'monitor');
    const monitor = ['-qmp', `unix:${path},server=on,wait=off`];
    const program = qemuProgram(process.arch === 'arm64' ? 'arm64' : 'x64');
    const args = ['-machine', 'none', '-nodefaults', '-display', 'none', ...monitor];
    const qemu = spawn(program, args, { stdio: ['ignore', 'ignore', 'inherit'] });
    const exited = once(qemu, 'exit');
    try {
      await body(path, qemu);
    } finally {
      qemu.kill('SIGKILL');
      await exited;
    }
  });
}

/** Something that says what it likes to whoever connects; afterwards it must have been cut off. */
async function withMonitor(
  speak: (socket: Socket) => void,
  body: (path: string) => Promise<void>,
): Promise<void> {
  await withDirectory(async (directory) => {
    const path = join(directory, 'monitor');
    const sockets = new Set<Socket>();
    const server = createServer((socket) => {
      sockets.add(socket);
      socket.on('error', () => undefined).once('close', () => sockets.delete(socket));
      speak(socket);
    }).listen(path);
    await once(server, 'listening');
    try {
      await body(path);
      await waitFor('the monitor to be cut off', async () => sockets.size === 0);
    } finally {
      server.close();
    }
  });
}

const refusesToOpen = (said: string) => async (t: ExecutionContext) => {
  await withMonitor(says(said), async (path) => {
    await t.throwsAsync(QmpClient.open(path), { instanceOf: QmpUnavailableError });
  });
};

test('concurrent commands each get their own answer', async (t) => {
  await withQemu(async (path) => {
    const client = await connected(path);
    const [status, version] = await Promise.all([
      client.execute('query-status'),
      client.execute('query-version'),
    ]);
    t.like(status, { running: true });
    t.true(JSON.stringify(version).includes('"major"'));
    client.close();
  });
});

test('a command that is refused says why, and the next one works', async (t) => {
  await withQemu(async (path) => {
    const client = await connected(path);
    const error = await t.throwsAsync(client.execute('no-such-command'), {
      instanceOf: QmpCommandError,
    });
    t.is(error.errorClass, 'CommandNotFound');
    t.like(await client.execute('query-status'), { running: true });
    client.close();
  });
});

test('events are emitted, and the end of QEMU closes the client', async (t) => {
  await withQemu(async (path, qemu) => {
    const client = await connected(path);
    const events: QmpEvent[] = [];
    client.on('event', (event) => events.push(event));
    await client.execute('stop');
    await waitFor('the event', async () => events.some(({ name }) => name === 'STOP'));
    const closed = once(client, 'closed');
    qemu.kill('SIGKILL');
    const [error] = (await closed) as [unknown];
    t.true(error instanceof QmpUnavailableError);
    await t.throwsAsync(client.execute('query-status'), { instanceOf: QmpUnavailableError });
  });
});

test('a new client takes over when the former one was closed', async (t) => {
  await withQemu(async (path) => {
    const first = await connected(path);
    const [closed, answer] = [once(first, 'closed'), first.execute('query-status')];
    first.close();
    t.deepEqual(await closed, [undefined]);
    await t.throwsAsync(answer, { instanceOf: QmpUnavailableError });
    const second = await connected(path);
    t.like(await second.execute('query-status'), { running: true });
    second.close();
  });
});

test('a missing socket is refused at once', async (t) => {
  await withDirectory(async (directory) => {
    const opened = QmpClient.open(join(directory, 'nothing'));
    await t.throwsAsync(opened, { instanceOf: QmpUnavailableError });
  });
});

test('refuses a monitor that does not greet', refusesToOpen('{"return": {}, "id": 1}\n'));
test('refuses a monitor that sends no JSON', refusesToOpen('hello\n'));
test('refuses a monitor that sends null', refusesToOpen('null\n'));
test('refuses a line that does not end', refusesToOpen('x'.repeat(1_100_000)));
test('refuses a line that is too long', refusesToOpen(`${' '.repeat(1_100_000)}\n`));
test('refuses endless nesting', refusesToOpen(`${GREETING}${'['.repeat(500_000)}\n`));
test(
  'refuses an answer to a command that was not sent',
  refusesToOpen(`${GREETING}{"return": {}, "id": 7}\n`),
);
test(
  'refuses an answer with a malformed id',
  refusesToOpen(`${GREETING}{"return": {}, "id": "__proto__"}\n`),
);
test('refuses a malformed event', refusesToOpen(`${GREETING}{"event": 1}\n`));

test('a monitor that falls silent after its greeting is abandoned', async (t) => {
  await withMonitor(says(GREETING), async (path) => {
    const opened = QmpClient.open(path, { timeoutMs: 100 });
    await t.throwsAsync(opened, { instanceOf: QmpUnavailableError });
  });
});

test('a command without an answer in time closes the client', async (t) => {
  await withMonitor(greets, async (path) => {
    const client = await QmpClient.open(path);
    const answer = client.execute('query-status', {}, 100);
    await t.throwsAsync(answer, { message: 'query-status: no answer in time' });
    t.true(client.isClosed);
  });
});

test("the text of a monitor's error is made safe for a log", async (t) => {
  const failure = { class: 5, desc: `\u001b[31m${'x'.repeat(5000)}` };
  const greet = (socket: Socket): void => {
    greets(socket);
    socket.on('data', (chunk) => {
      if (!chunk.toString().includes('query-status')) return;
      socket.write(`${JSON.stringify({ id: 2, error: failure })}\n`);
    });
  };
  await withMonitor(greet, async (path) => {
    const client = await QmpClient.open(path);
    const error = await t.throwsAsync(client.execute('query-status'));
    t.true(error.message.length < 1100);
    t.notRegex(error.message, /[^ -~]/u);
    client.close();
  });
});

test('too many commands at once are refused', async (t) => {
  await withMonitor(greets, async (path) => {
    const client = await QmpClient.open(path);
    const answers = Array.from({ length: 65 }, () => client.execute('query-status'));
    const settled = Promise.allSettled(answers);
    await t.throwsAsync(answers[64] as Promise<unknown>, { message: /too many/u });
    client.close();
    t.true((await settled).every(({ status }) => status === 'rejected'));
  });
});
