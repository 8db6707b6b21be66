/* Files on the storage that hosts share: whatever lies there, a host takes only sandboxes. */
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { copyFile, mkdir, symlink, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test from 'ava';
import { readSandbox, writeSandbox } from '../../../../agent/sandboxes/moving/handover-record.ts';
import {
  HandedOverExecs,
  readExecs,
} from '../../../../agent/sandboxes/moving/handed-over-execs.ts';
import { SharedStorage } from '../../../../agent/sandboxes/moving/shared-storage.ts';
import { newRow } from '../../../../agent/sandboxes/lifecycle/new-sandbox.ts';
import { newAccountId, newHostId, newSandboxId } from '../../../../shared/ids.ts';
import { seal } from '../../../../shared/secrets.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';

const KEYS = [randomBytes(32)] as const;
const FILE = 'sandbox.sealed';
const noExecs = { execIds: async () => [], exec: async () => undefined };
const hostId = newHostId();

const rowOf = (vmId: string) => ({
  ...newRow(
    {
      ...{ id: newSandboxId(), accountId: newAccountId(), image: undefined },
      ...{ environment: { SECRET: 'kept' }, network: {}, networkSealed: undefined },
      config: {
        ...{ name: 'moved', vcpuCount: 1, memSizeMib: 256, maxTtlSeconds: 3600 },
        ...{ idleTtlSeconds: 0, maxConcurrentExecs: 4, baseImage: '' },
      },
    },
    { vmId, uid: 1 },
  ),
  state: 'paused' as const,
});

/** The stored form of a row, with the changes of somebody who has the key. */
const sealed = (vmId: string, changes: object, inRow: object = {}): string => {
  const { uid: _, ...row } = rowOf(vmId);
  const content = { version: 1, hostId, row: { ...row, ...inRow }, ...changes };
  return seal(KEYS, JSON.stringify(content), `moving sandbox of ${vmId}`);
};

test('a sandbox is read as it was written, by its own machine and key alone', async (t) => {
  await using directory = await temporaryDirectory();
  const { path } = directory;
  const row = rowOf(newSandboxId());
  t.is(await readSandbox(path, KEYS, row.vmId), undefined, 'its creation was not over');
  await writeSandbox(path, KEYS, { hostId, row });
  const found = await readSandbox(path, KEYS, row.vmId);
  t.is(found?.hostId, hostId);
  t.like(found?.row, { id: row.id, accountId: row.accountId, environment: row.environment });
  await t.throwsAsync(readSandbox(path, [randomBytes(32)], row.vmId));
  await t.throwsAsync(readSandbox(path, KEYS, newSandboxId()), undefined, 'another machine');
  await new HandedOverExecs(path, KEYS, row, noExecs).complete();
  await copyFile(join(path, 'execs.sealed'), join(path, FILE));
  await t.throwsAsync(readSandbox(path, KEYS, row.vmId), undefined, 'the other file');
});

test('what is damaged, foreign or no plain file is refused', async (t) => {
  await using directory = await temporaryDirectory();
  const { path } = directory;
  const vmId = newSandboxId();
  const file = join(path, FILE);
  const other = newSandboxId();
  const texts = {
    nothing: '',
    noise: randomBytes(300).toString('base64'),
    'no base64': 'ÿ'.repeat(300),
    'another version': sealed(vmId, { version: 2 }),
    'no host': sealed(vmId, { hostId: '../../etc' }),
    'a path as sandbox': sealed(vmId, {}, { id: '../../../etc' }),
    'a path as account': sealed(vmId, {}, { accountId: '../acct' }),
    'another machine within': sealed(vmId, {}, { vmId: other }),
    'another machine’s seal': sealed(other, {}),
    'no such state': sealed(vmId, {}, { state: 'elsewhere' }),
  };
  await writeFile(file, sealed(vmId, {}));
  t.not(await readSandbox(path, KEYS, vmId), undefined, 'as it is, it is read');
  for (const [what, text] of Object.entries(texts)) {
    await writeFile(file, text);
    await t.throwsAsync(readSandbox(path, KEYS, vmId), undefined, what);
  }
  await writeFile(file, sealed(vmId, {}).slice(0, -9));
  await t.throwsAsync(readSandbox(path, KEYS, vmId), undefined, 'truncated');
  await truncate(file, 2 ** 40);
  await t.throwsAsync(readSandbox(path, KEYS, vmId), { message: /more than/u });
  await new HandedOverExecs(path, KEYS, { id: vmId, vmId }, noExecs).complete();
  await truncate(join(path, 'execs.sealed'), 2 ** 40);
  await t.throwsAsync(readExecs(path, KEYS, { id: vmId, vmId }), { message: /more than/u });
});

test('links, pipes and directories in place of its files are refused at once', async (t) => {
  await using directory = await temporaryDirectory();
  const vmId = newSandboxId();
  const [whole, linked, pipe, nested] = ['whole', 'linked', 'pipe', 'nested'].map((name) =>
    join(directory.path, name),
  ) as [string, string, string, string];
  for (const path of [whole, linked, pipe, nested]) await mkdir(path);
  await writeFile(join(whole, FILE), sealed(vmId, {}));
  await symlink(join(whole, FILE), join(linked, FILE));
  await promisify(execFile)('mkfifo', [join(pipe, FILE)]);
  await mkdir(join(nested, FILE));
  t.not(await readSandbox(whole, KEYS, vmId), undefined);
  await t.throwsAsync(readSandbox(linked, KEYS, vmId), { code: 'ELOOP' });
  await t.throwsAsync(readSandbox(pipe, KEYS, vmId), { message: /not a regular file/u });
  await t.throwsAsync(readSandbox(nested, KEYS, vmId), { message: /not a regular file/u });
});

test('only directories of machines are listed, and no path leads out of the storage', async (t) => {
  await using directory = await temporaryDirectory();
  const storage = await SharedStorage.open(directory.path, hostId);
  const [mine, linked, file] = [newSandboxId(), newSandboxId(), newSandboxId()];
  await storage.claim(mine);
  const { released, sandboxes } = storage.paths;
  await symlink(join(sandboxes, mine), join(released, linked));
  await writeFile(join(released, file), '');
  await mkdir(join(released, '..x'));
  t.deepEqual(await storage.list('released'), []);
  t.deepEqual(await storage.list(), [mine]);
  t.throws(() => storage.directoryOf('../released'), { instanceOf: RangeError });
  t.throws(() => storage.directoryOf(mine, { hostId: '..' }), { instanceOf: RangeError });
});

test('of hosts that take one machine at once, one has it', async (t) => {
  await using directory = await temporaryDirectory();
  const ids = Array.from({ length: 4 }, newHostId);
  const open = (id: string): Promise<SharedStorage> => SharedStorage.open(directory.path, id);
  const storages = await Promise.all(ids.map(open));
  for (let round = 0; round < 25; round += 1) {
    const vmId = newSandboxId();
    const giver = storages[round % storages.length];
    await giver?.claim(vmId);
    t.true(await giver?.release(vmId));
    const taken = await Promise.all(storages.map((each) => each.take(vmId, 'released')));
    t.is(taken.filter(Boolean).length, 1);
    const has = await Promise.all(storages.map((each) => each.has(vmId)));
    t.deepEqual(has, taken);
  }
});
