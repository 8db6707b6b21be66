import assert from 'node:assert';
import { createHash, randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { type IncomingMessage, request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import type { GuestChannel } from '../agent/machines/guest-link/guest-channel.ts';
import type { GuestOutput } from '../agent/machines/guest-link/guest-types.ts';
import { GiB, MiB } from '../shared/units.ts';
import { processSpec, startConfigured } from '../test/helpers/guest.ts';
import { Files } from '../test/helpers/sandbox-files.ts';
import { containerSettings, createSandbox, outputOf } from '../test/helpers/sandboxes.ts';
import { Stack } from '../test/helpers/stack.ts';
import { alternate, printComparison, printRows, timed } from './statistics.ts';

const PIECE = randomBytes(MiB);
const SMALL_FILES = 10_000;
const AT_ONCE = 8;

/** Pieces of so many bytes together, and what they hash to. */
function digestOf(bytes: number): string {
  const hash = createHash('sha256');
  for (let at = 0; at < bytes; at += MiB) hash.update(PIECE);
  return hash.digest('hex');
}

/** `cat` in a guest agent beside, without anything between it and this process. */
async function bareUp(channel: GuestChannel, path: string, bytes: number): Promise<void> {
  const spec = processSpec(`cat > ${path}`, { stdin: true });
  const exited = once(channel, 'exited');
  await channel.start(spec);
  for (let at = 0; at < bytes; at += MiB) await channel.writeStdin(spec.id, PIECE);
  await channel.closeStdin(spec.id);
  await exited;
  await channel.forget(spec.id);
}

async function bareDown(channel: GuestChannel, path: string): Promise<void> {
  const id = randomUUID();
  const hash = createHash('sha256');
  const listen = (output: GuestOutput): void => {
    if (output.processId !== id) return;
    hash.update(output.bytes);
    channel.acknowledge(id, output.offset + output.bytes.length);
  };
  channel.on('output', listen);
  const exited = once(channel, 'exited');
  await channel.start(processSpec(`cat ${path}`, { id }));
  await exited;
  channel.off('output', listen);
  await channel.forget(id);
}

async function up(files: Files, path: string, bytes: number): Promise<void> {
  const headers = { ...files.headers, 'content-length': String(bytes) };
  const upload = request(files.url(path), { method: 'PUT', headers });
  const answered = once(upload, 'response') as Promise<[IncomingMessage]>;
  for (let at = 0; at < bytes; at += MiB) {
    if (!upload.write(PIECE)) await once(upload, 'drain');
  }
  upload.end();
  const [answer] = await answered;
  answer.resume();
  assert.ok((answer.statusCode ?? 0) < 300, String(answer.statusCode));
}

async function down(files: Files, path: string): Promise<string> {
  const hash = createHash('sha256');
  const asked = request(files.url(path), { headers: files.headers }).end();
  const [answer] = (await once(asked, 'response')) as [IncomingMessage];
  for await (const chunk of answer as AsyncIterable<Buffer>) hash.update(chunk);
  return hash.digest('hex');
}

async function smallFiles(files: Files): Promise<void> {
  let next = 0;
  const worker = async (): Promise<void> => {
    while (next < SMALL_FILES) {
      next += 1;
      await files.put(`/small/${next}`, `content of ${next}`, '&parents=true');
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

/** Files of a sandbox that is a container, beside the bare channel to a guest agent. */
export async function benchFiles(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      rounds: { type: 'string', default: '3' },
      mib: { type: 'string', default: '1024' },
    },
  });
  const rounds = Number(values.rounds);
  const bytes = Number(values.mib) * MiB;
  const bare = await startConfigured();
  const stack = await Stack.start({ ...containerSettings(), SANDBOX_DISK_BYTES: String(4 * GiB) });
  const barePath = join(tmpdir(), `berth-bench-${randomUUID()}`);
  try {
    const api = await stack.newClient();
    const { sandbox_id: id } = await createSandbox(api);
    const files = new Files(stack, api, id);
    const sent = await alternate(
      rounds,
      () => up(files, '/big', bytes),
      () => bareUp(bare.channel, barePath, bytes),
    );
    const inside = await outputOf(api, id, 'sha256sum < /big');
    assert.equal(inside.slice(0, 64), digestOf(bytes));
    const got = await alternate(
      rounds,
      async () => assert.equal(await down(files, '/big'), digestOf(bytes)),
      () => bareDown(bare.channel, barePath),
    );
    const names = { ours: 'files API', baseline: 'bare guest channel' };
    const shown = { unit: 'ms', target: 'at most 2' };
    printComparison(`${values.mib} MiB up`, sent, names, shown);
    printComparison(`${values.mib} MiB down, checked`, got, names, shown);
    const ms = await timed(() => smallFiles(files));
    const count = await outputOf(api, id, 'ls /small | wc -l');
    assert.equal(Number(count), SMALL_FILES);
    const row = { name: `${AT_ONCE} at once`, samples: [ms] };
    printRows(`${SMALL_FILES} small files up`, [row], 'ms');
  } finally {
    await stack.stop();
    await bare[Symbol.asyncDispose]();
    await rm(barePath, { force: true });
  }
}
