import assert from 'node:assert';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { join } from 'node:path';
import type { GuestChannel } from '../agent/machines/guest-link/guest-channel.ts';
import { GiB, MiB } from '../shared/units.ts';
import { startConfigured } from '../test/helpers/guest.ts';
import { Files } from '../test/helpers/sandbox-files.ts';
import { containerSettings, createSandbox } from '../test/helpers/sandboxes.ts';
import { Stack } from '../test/helpers/stack.ts';
import { temporaryDirectory } from '../test/helpers/temporary.ts';
import { runInGuest } from './bare-slot.ts';
import { readFlags } from './flags.ts';
import { alternate, printComparison, printRows, timed } from './statistics.ts';

const PIECE = randomBytes(MiB);
const AT_ONCE = 8;

/** Pieces of so many bytes together, and what they hash to. */
function digestOf(bytes: number): string {
  const hash = createHash('sha256');
  for (const piece of piecesOf(bytes)) hash.update(piece);
  return hash.digest('hex');
}

/** `cat` in a guest agent beside, without anything between it and this process. */
const bareUp = (channel: GuestChannel, path: string, bytes: number): Promise<void> =>
  runInGuest(channel, `cat > ${path}`, {
    async input(id) {
      for (const piece of piecesOf(bytes)) await channel.writeStdin(id, piece);
      await channel.closeStdin(id);
    },
  });

async function bareDown(channel: GuestChannel, path: string): Promise<string> {
  const hash = createHash('sha256');
  await runInGuest(channel, `cat ${path}`, { output: (bytes) => void hash.update(bytes) });
  return hash.digest('hex');
}

function* piecesOf(bytes: number): Generator<Buffer> {
  for (let at = 0; at < bytes; at += MiB) yield PIECE;
}

async function up(files: Files, path: string, bytes: number): Promise<void> {
  const headers = { ...files.headers, 'content-length': String(bytes) };
  const upload = request(files.url(path), { method: 'PUT', headers });
  const answered = once(upload, 'response') as Promise<[IncomingMessage]>;
  const sent = pipeline(Readable.from(piecesOf(bytes)), upload);
  const [[answer]] = await Promise.all([answered, sent]);
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

async function benchSmall(files: Files, count: number): Promise<void> {
  let next = 0;
  const worker = async (): Promise<void> => {
    while (next < count) {
      next += 1;
      await files.put(`/small/${next}`, `content of ${next}`, '&parents=true');
    }
  };
  const workers = () => Promise.all(Array.from({ length: AT_ONCE }, worker));
  const row = { name: `${AT_ONCE} at once`, samples: [await timed(workers)] };
  printRows(`${count} small files up`, [row], 'ms');
}

/** `npm run bench -- files`: see docs/benchmarks.md. */
export async function benchFiles(args: readonly string[]): Promise<void> {
  const known = { rounds: 3, mib: 1024, files: 10_000 };
  const { rounds, mib, files: count, only } = readFlags(args, known, ['large', 'small']);
  const bytes = mib * MiB;
  await using bare = await startConfigured();
  await using directory = await temporaryDirectory();
  const settings = { ...containerSettings(), SANDBOX_DISK_BYTES: String(4 * GiB) };
  await using stack = await Stack.start(settings);
  const { channel } = bare;
  const barePath = join(directory.path, 'big');
  const api = await stack.newClient();
  const { sandbox_id: id } = await createSandbox(api);
  const files = new Files(stack, api, id);
  if (only.has('large')) {
    const names = { ours: 'files API', baseline: 'bare guest channel' };
    const shown = { unit: 'ms', target: '≤ 2' };
    const sent = await alternate(
      rounds,
      () => up(files, '/big', bytes),
      () => bareUp(channel, barePath, bytes),
    );
    printComparison(`${mib} MiB up`, sent, names, shown);
    const digest = digestOf(bytes);
    const got = await alternate(
      rounds,
      async () => assert.equal(await down(files, '/big'), digest),
      async () => assert.equal(await bareDown(channel, barePath), digest),
    );
    printComparison(`${mib} MiB down, checked`, got, names, shown);
  }
  if (only.has('small')) await benchSmall(files, count);
}
