/*
 * Downloads during faults: none hangs, none looks complete that is not, and memory does not grow.
 */
import type { IncomingMessage } from 'node:http';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { createDisk, exec } from '../helpers/disks.ts';
import { codeOf, download, open, share } from '../helpers/shares.ts';
import { diskMount, usersOfDisk } from '../helpers/host.ts';
import { type StackContext, stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';
import { MiB } from '../../shared/units.ts';

const SIZE = 200 * MiB;

const test = stackTest();

/** Creates a disk with a large sparse file and a share link, and begins a download. */
async function begun({ api }: StackContext): Promise<{
  diskId: string;
  url: string;
  answer: IncomingMessage;
}> {
  const { id: diskId } = await createDisk(api);
  await exec(api, diskId, `truncate -s ${SIZE} big`);
  const url = await share(api, diskId, 'big');
  const answer = await open(url);
  answer.on('error', () => undefined);
  const [chunk] = (await once(answer, 'data')) as [Buffer];
  answer.pause();
  answer.unshift(chunk);
  return { diskId, url, answer };
}

/** Reads to the end. @returns whether the answer was complete */
async function isWhole(answer: IncomingMessage): Promise<boolean> {
  answer.resume();
  if (!answer.closed) await once(answer, 'close').catch(() => undefined);
  return answer.complete;
}

test.serial('a file that replaces another during its download is not read', async (t) => {
  const { api } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'echo content > file');
  const url = await share(api, id, 'file');
  for (const swap of [
    'ln -s /etc/passwd file',
    'ln -s ../../../../etc/passwd file',
    'mkfifo file',
    'mkdir file',
    'ln -s file file',
    'true',
  ]) {
    await exec(api, id, `rm -rf file; ${swap}`);
    const reply = await download(url);
    t.is(reply.status, 404, swap);
    t.is(codeOf(reply), 'not_found');
  }
  await exec(api, id, 'echo again > file');
  t.is((await download(url)).body.toString(), 'again\n');
});

test.serial('a file cut short in mid-download breaks the connection', async (t) => {
  const { api } = t.context;
  const { diskId, answer } = await begun(t.context);
  await exec(api, diskId, 'truncate -s 1M big');
  t.false(await isWhole(answer));
});

test.serial('a file deleted in mid-download still comes whole', async (t) => {
  const { api } = t.context;
  const { diskId, url, answer } = await begun(t.context);
  await exec(api, diskId, 'rm big');
  t.true(await isWhole(answer));
  t.is((await download(url)).status, 404);
});

test.serial('a disk deleted in mid-download breaks the connection', async (t) => {
  const { api } = t.context;
  const { diskId, url, answer } = await begun(t.context);
  t.is((await api.call('DELETE', `/api/disks/${diskId}`)).status, 200);
  t.false(await isWhole(answer));
  const reply = await download(url);
  t.is(reply.status, 404);
  t.is(codeOf(reply), 'not_found');
});

test.serial('when the caller hangs up, nothing uses the disk any more', async (t) => {
  const { stack } = t.context;
  const { diskId, answer } = await begun(t.context);
  const mount = diskMount(stack, diskId);
  t.not((await usersOfDisk(mount)).length, 0);
  answer.destroy();
  await waitFor('the file to be closed', async () => (await usersOfDisk(mount)).length === 0);
  await waitFor('the logs to tell of it', async () => {
    const logs = [await stack.control.readLog(), await stack.agent.readLog()];
    return logs.every((log) =>
      log.split('\n').some((line) => line.includes(diskId) && line.includes('"completed":false')),
    );
  });
});

async function memoryBytes(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  return Number(/^VmRSS:\s+(\d+) kB$/mu.exec(status)?.[1]) * 1024;
}

test.serial('slow readers cost neither control nor agent memory by size', async (t) => {
  const { stack } = t.context;
  const { url, answer } = await begun(t.context);
  await isWhole(answer); // Memory that the first download allocates once.
  const pids = [stack.control.pid, stack.agent.pid];
  const before = await Promise.all(pids.map(memoryBytes));
  const slow = await Promise.all(Array.from({ length: 4 }, () => open(url)));
  let received = 0;
  let highest = [0, 0];
  const read = async (reader: IncomingMessage): Promise<void> => {
    let sinceLook = 0;
    for await (const chunk of reader as AsyncIterable<Buffer>) {
      received += chunk.length;
      sinceLook += chunk.length;
      if (sinceLook < 4 * MiB) continue;
      sinceLook = 0;
      const now = await Promise.all(pids.map(memoryBytes));
      highest = highest.map((value, index) => Math.max(value, now[index] ?? 0));
      await sleep(2); // Slower than the host reads.
    }
  };
  await Promise.all(slow.map(read));
  t.is(received, 4 * SIZE);
  const growth = highest.map((value, index) => (value - (before[index] ?? 0)) / MiB);
  t.log(`growth of control and agent: ${growth.map((value) => value.toFixed(1)).join(', ')} MiB`);
  // Four bodies of 200 MiB each. V8 lets up to 64 MiB of buffers wait before it collects them.
  t.true(
    growth.every((value) => value < SIZE / 2 / MiB),
    growth.join(', '),
  );
});

/** Bytes that a process has read, from files and sockets alike. */
async function readBytes(pid: number): Promise<number> {
  const io = await readFile(`/proc/${pid}/io`, 'utf8');
  return Number(/^rchar: (\d+)$/mu.exec(io)?.[1]);
}

test.serial('a client that reads nothing makes the host stop reading', async (t) => {
  const { pid } = t.context.stack.agent;
  const before = await readBytes(pid);
  const { answer } = await begun(t.context);
  // The sockets' buffers fill up; then the host reads no further.
  let [last, unchanged] = [before, 0];
  await waitFor('the host to stop reading', async () => {
    const now = await readBytes(pid);
    unchanged = now - last < MiB ? unchanged + 1 : 0;
    last = now;
    return unchanged > 10;
  });
  t.true(last - before < SIZE / 2, `${last - before} bytes were read`);
  answer.destroy();
});

test.serial('an agent killed in mid-download breaks the connection, and comes back', async (t) => {
  const { stack } = t.context;
  const { url, answer } = await begun(t.context);
  await stack.agent.stop('SIGKILL');
  t.false(await isWhole(answer));
  const gone = await download(url);
  t.is(gone.status, 503);
  t.is(gone.headers['retry-after'], '2');
  await stack.startAgent();
  await waitFor('the download to work again', async () => {
    const reply = await download(url, { range: 'bytes=-1' });
    return reply.status === 206;
  });
});

test.serial('a link leads to whichever host has the disk', async (t) => {
  const { stack, api } = t.context;
  const { id } = await createDisk(api);
  await exec(api, id, 'echo content > file');
  const url = await share(api, id, 'file');
  const other = await stack.addAgent();
  await other.start();
  t.is(await stack.agent.stop(), 0);
  await waitFor('the other host to serve it', async () => (await download(url)).status === 200);
  t.is((await download(url)).body.toString(), 'content\n');
  await stack.startAgent();
  t.is(await other.daemon.stop(), 0);
  await waitFor('the first one to serve it', async () => (await download(url)).status === 200);
});

test.serial('an agent that stops lets a download finish', async (t) => {
  const { stack } = t.context;
  const { answer } = await begun(t.context);
  const stopped = stack.agent.stop();
  t.true(await isWhole(answer));
  t.is(await stopped, 0);
  await stack.startAgent();
});
