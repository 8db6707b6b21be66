import { parseArgs } from 'node:util';
import type { Directory } from '../shared/directory/directory.ts';
import { newDiskId, newEventId, newSandboxId } from '../shared/ids.ts';
import { DIRECTORY_LIMITS } from '../shared/directory/limits.ts';
import { SCHEMA_LIMITS } from '../shared/schemas/limits.ts';
import { GiB } from '../shared/units.ts';
import { createDisk, exec } from '../test/helpers/disks.ts';
import { ObjectClient, s3UrlOf, textsOf } from '../test/helpers/objects.ts';
import { sandboxRecord } from '../test/helpers/sandbox-records.ts';
import { Stack } from '../test/helpers/stack.ts';
import { printRows, timed } from './statistics.ts';

const SIZES = [10, 100, 1000, 10_000, 100_000];
const ROUNDS = 20;
/** Enough for Redis to sync many of them at once. */
const WRITTEN_AT_ONCE = 500;
const REGION = 'local-test';

/** A page of a list, and the cursor of the next one. */
type ReadPage = (cursor: string | undefined) => Promise<string | undefined>;

/** A list whose pages are measured. */
interface ListKind {
  /** Entries that one account may have; more are of several accounts. */
  readonly max: number;
  /** Makes so many entries. @returns ways to read them, by name */
  readonly fill: (bench: Bench, size: number) => Promise<Readonly<Record<string, ReadPage>>>;
}

interface Bench {
  readonly stack: Stack;
  readonly directory: Directory;
}

async function writeAll(count: number, write: (index: number) => Promise<unknown>): Promise<void> {
  for (let from = 0; from < count; from += WRITTEN_AT_ONCE) {
    const length = Math.min(WRITTEN_AT_ONCE, count - from);
    await Promise.all(Array.from({ length }, (_, index) => write(from + index)));
  }
}

/**
 * Writes entries as the parts of Berth do, into as many accounts as they need.
 * @returns a key of the first account
 */
async function fillAccounts(
  { directory }: Bench,
  { size, max }: { readonly size: number; readonly max: number },
  write: (accountId: string, index: number) => Promise<unknown>,
): Promise<string> {
  const ids: string[] = [];
  let key = '';
  for (let left = size; left > 0; left -= max) {
    const account = await directory.accounts.create(`lists-${newDiskId()}`);
    if (ids.length === 0) key = (await directory.apiKeys.create(account, { name: 'bench' })).token;
    ids.push(account.id);
    await writeAll(Math.min(max, left), (index) => write(account.id, index));
  }
  return key;
}

/** Reads a page of the API. */
function apiPage({ stack }: Bench, key: string, path: string): ReadPage {
  const headers = { authorization: `Bearer ${key}` };
  return async (cursor) => {
    const after = cursor === undefined ? '' : `&cursor=${cursor}`;
    const response = await fetch(`${stack.baseUrl}${path}${after}`, { headers });
    const reply = (await response.json()) as { success: boolean; nextCursor?: string };
    if (!reply.success) throw new Error(`${path}: ${JSON.stringify(reply)}`);
    return reply.nextCursor;
  };
}

const PAGE = `limit=${SCHEMA_LIMITS.pageSizeMax}`;

const disks: ListKind = {
  max: DIRECTORY_LIMITS.disksPerAccountMax,
  async fill(bench, size) {
    const key = await fillAccounts(bench, { size, max: disks.max }, (accountId, index) =>
      bench.directory.disks.create({
        ...{ id: newDiskId(), accountId, organization: 'bench', region: REGION },
        ...{ name: `disk-${index}`, status: 'available', revision: 1 },
        createdAt: new Date(Date.now() + index).toISOString(),
        ...{ allowedIps: [], allowedOrigins: [], users: [] },
      }),
    );
    return { page: apiPage(bench, key, `/api/disks?${PAGE}`) };
  },
};

const sandboxes: ListKind = {
  max: DIRECTORY_LIMITS.sandboxesPerAccountMax,
  async fill(bench, size) {
    const key = await fillAccounts(bench, { size, max: sandboxes.max }, (accountId) =>
      bench.directory.sandboxes.publish(sandboxRecord({ accountId })),
    );
    return { page: apiPage(bench, key, '/api/sandboxes?') };
  },
};

const activity: ListKind = {
  max: DIRECTORY_LIMITS.activityPerAccountMax,
  async fill(bench, size) {
    const key = await fillAccounts(bench, { size, max: activity.max }, (accountId, index) =>
      bench.directory.activity.record({
        ...{ eventId: newEventId(), accountId, diskId: newDiskId() },
        ...{ eventType: 'disk.exec', level: 'info', createdAt: new Date().toISOString() },
        details: { operation: 'execOnDisk', outcome: 'done', status: 200, requestId: `${index}` },
      }),
    );
    const ofNone = `/api/activity?${PAGE}&sandboxId=${newSandboxId()}`;
    return {
      page: apiPage(bench, key, `/api/activity?${PAGE}`),
      'page of a filter that nothing passes': apiPage(bench, key, ofNone),
    };
  },
};

const objects: ListKind = {
  max: Number.POSITIVE_INFINITY,
  async fill({ stack }, size) {
    const api = await stack.newClient();
    const { id } = await createDisk(api);
    const made = await exec(
      api,
      id,
      `python3 -c "for i in range(${size}): open(f'object-{i:06}', 'w').write('x')"`,
    );
    if (made.exitCode !== 0) throw new Error(made.stderr);
    const s3 = new ObjectClient(s3UrlOf(stack), api.key);
    const page: ReadPage = async (token) => {
      const after = token === undefined ? '' : `&continuation-token=${encodeURIComponent(token)}`;
      const reply = await s3.call('GET', `/${id}?list-type=2${after}`);
      if (reply.status !== 200) throw new Error(reply.text);
      return textsOf(reply.text, 'NextContinuationToken')[0];
    };
    return { page };
  },
};

const kinds: Readonly<Record<string, ListKind>> = { disks, sandboxes, objects, activity };

/** Milliseconds of the first page, of the last one, and of reading all pages in turn. */
async function measure(read: ReadPage): Promise<{ first: number[]; last: number[]; all: number }> {
  const repeat = async (cursor: string | undefined): Promise<number[]> => {
    const samples: number[] = [];
    for (let round = 0; round < ROUNDS; round += 1) {
      samples.push(await timed(async () => void (await read(cursor))));
    }
    return samples;
  };
  await read(undefined);
  let last: string | undefined;
  const all = await timed(async () => {
    for (let next = await read(undefined); next !== undefined; next = await read(next)) last = next;
  });
  return { first: await repeat(undefined), last: await repeat(last), all };
}

async function benchKind(bench: Bench, name: string, sizes: readonly number[]): Promise<void> {
  const rows = new Map<string, { name: string; samples: number[] }[]>();
  const add = (title: string, size: number, samples: number[]): void => {
    rows.set(title, [...(rows.get(title) ?? []), { name: `${size} entries`, samples }]);
  };
  for (const size of sizes) {
    const pages = (await kinds[name]?.fill(bench, size)) ?? {};
    for (const [what, read] of Object.entries(pages)) {
      const { first, last, all } = await measure(read);
      add(`${name}, first ${what}`, size, first);
      add(`${name}, last ${what}`, size, last);
      add(`${name}, every ${what} in turn`, size, [all]);
    }
  }
  for (const [title, samples] of rows) printRows(title, samples, 'ms');
}

/** `npm run bench -- lists [--only disks,sandboxes,objects,activity] [--sizes N,N,…]` */
export async function benchLists(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      only: { type: 'string', default: Object.keys(kinds).join(',') },
      sizes: { type: 'string', default: SIZES.join(',') },
    },
  });
  const names = values.only.split(',');
  const unknown = names.find((name) => !(name in kinds));
  if (unknown !== undefined) throw new Error(`there is no list of ${unknown}`);
  const sizes = values.sizes.split(',').map(Number);
  const stack = await Stack.start({ REGION, DISK_SIZE_BYTES: String(4 * GiB) });
  try {
    const bench = { stack, directory: await stack.openDirectory() };
    for (const name of names) await benchKind(bench, name, sizes);
  } finally {
    await stack.stop();
  }
}
