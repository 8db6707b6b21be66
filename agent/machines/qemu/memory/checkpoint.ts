import { createHash, randomUUID } from 'node:crypto';
import { link, mkdir, open, readFile, rm, stat, unlink, utimes, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Writable } from 'node:stream';
import Type from 'typebox';
import { errnoOf, ignoring } from '../../../../shared/errors.ts';
import { compile } from '../../../../shared/validate.ts';
import { native } from '../../../native/native.ts';
import { failpoint } from '../../../system/failpoint.ts';
import { syncPath, writeDurably } from '../../../system/write-durably.ts';
import type { GuestChannel } from '../../guest-link/guest-channel.ts';
import {
  continueMachine,
  DEVICES_BYTES_MAX,
  loadDevices,
  type MachineProcess,
  MachineStateError,
  ramOf,
  saveDevices,
  stopMachine,
} from './machine-state.ts';
import { isStorageError, sha256, type Template } from './template.ts';
import { readRecord } from '../../../system/read-record.ts';

/*
 * A checkpoint holds what a machine needs to continue, besides its template and its disk: the pages
 * of RAM that it changed, and the state of its devices. It is valid while its marker exists. The
 * marker is written once everything else is durable, and removed durably before the machine runs
 * again: from its first instruction on, the disk no longer matches the checkpoint.
 */

const FILES = { pages: 'pages', devices: 'devices', marker: 'checkpoint.json' } as const;

/**
 * How long a guest may take to freeze its processes and write back its file systems. For a fork,
 * less than its caller waits; no caller waits for the end of a pause.
 */
const FREEZE_MS_MAX = { pause: 60_000, fork: 8_000 } as const;
/** How long monitor and guest may take to answer before a fork begins. */
const ANSWER_MS_MAX = 5_000;

const Marker = Type.Object({
  version: Type.Literal(1),
  /** Unique; the file of pages carries it, too. */
  id: Type.String({ pattern: '^[0-9a-f-]{36}$' }),
  template: Type.String({ pattern: '^[0-9a-f]{64}$' }),
  changedPages: Type.Integer({ minimum: 0 }),
  devicesHash: Type.String({ pattern: '^[0-9a-f]{64}$' }),
});
type Marker = Type.Static<typeof Marker>;
const checkMarker = compile(Marker);

/** There is no usable checkpoint: the machine must start from its disk. */
export class CheckpointError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'CheckpointError';
  }
}

/** A machine with a guest that answers. */
export interface LiveMachine extends MachineProcess {
  readonly guest: Pick<GuestChannel, 'freeze' | 'thaw'>;
}

interface CheckpointPaths {
  /** The checkpoint's own directory; created when missing. */
  readonly directory: string;
  readonly template: Template;
}

/** A key that ties the file of pages to one checkpoint and to the contents of its template. */
const pagesKey = ({ id }: Pick<Marker, 'id'>, { key, contents }: Template): Buffer =>
  createHash('sha256').update(`${key} ${contents} ${id}`).digest();

/**
 * Stops a machine and makes its checkpoint durable; the caller must kill the machine then. When
 * this fails, the machine continues to run.
 * @param disks the files that the machine writes to; they are made durable before the checkpoint
 *   counts
 * @throws MachineStateError when the machine neither paused nor continues: the caller must kill it
 */
export async function saveCheckpoint(
  machine: LiveMachine,
  paths: CheckpointPaths & { readonly disks: readonly string[] },
): Promise<void> {
  await machine.guest.freeze(FREEZE_MS_MAX.pause);
  try {
    await stopMachine(machine);
    const marker = await capture(machine, paths, { isFinal: true });
    await Promise.all(paths.disks.map(syncPath));
    await commit(paths.directory, marker);
  } catch (error) {
    await letContinue(machine, error, () => discardCheckpoint(paths.directory));
    throw error;
  }
}

/**
 * Checks that monitor and guest answer, before a fork changes anything that would have to be
 * undone.
 * @throws MachineFault when one of them does not answer in time
 */
export async function requireAnswers(
  { monitor }: Pick<MachineProcess, 'monitor'>,
  guest: Pick<GuestChannel, 'ping'>,
): Promise<void> {
  await Promise.all([
    guest.ping(ANSWER_MS_MAX),
    monitor.execute('query-status', {}, ANSWER_MS_MAX),
  ]);
}

/**
 * Makes a durable checkpoint of a running machine, from which a copy can start. The machine stands
 * still for a moment and continues.
 * @param splitDisk called while the machine is stopped; puts an empty layer on its disk
 * @param continued called once it has continued; its checkpoint is made durable afterwards
 * @returns the result of `splitDisk`
 * @throws MachineStateError when the machine does not continue: the caller must kill it
 */
export async function saveRunningCheckpoint<T>(
  machine: LiveMachine,
  paths: CheckpointPaths,
  splitDisk: () => Promise<T>,
  continued: () => void = () => undefined,
): Promise<T> {
  try {
    const { marker, split } = await captureRunning(machine, paths, splitDisk);
    continued();
    await commit(paths.directory, marker);
    return split;
  } catch (error) {
    await discardCheckpoint(paths.directory);
    throw error;
  }
}

async function captureRunning<T>(
  machine: LiveMachine,
  paths: CheckpointPaths,
  splitDisk: () => Promise<T>,
): Promise<{ marker: Marker; split: T }> {
  let captured: { marker: Marker; split: T };
  // Removing the old checkpoint may take long, so it comes before the machine stops.
  await discardCheckpoint(paths.directory);
  await machine.guest.freeze(FREEZE_MS_MAX.fork);
  try {
    await stopMachine(machine);
    const marker = await capture(machine, paths, { isFinal: false });
    captured = { marker, split: await splitDisk() };
  } catch (error) {
    await letContinue(machine, error);
    throw error;
  }
  await letContinue(machine, undefined);
  return captured;
}

/**
 * Lets a stopped machine and its guest continue.
 * @param cause the failure that led here, if there was one
 * @param prepare called before the machine continues
 * @throws MachineStateError
 */
async function letContinue(
  machine: LiveMachine,
  cause: unknown,
  prepare: () => Promise<void> = async () => undefined,
): Promise<void> {
  try {
    await prepare();
    await continueMachine(machine);
    await machine.guest.thaw();
  } catch (error) {
    throw new MachineStateError(`the machine does not continue: ${String(error)}`, {
      cause: cause ?? error,
    });
  }
}

/** Writes the state of a stopped machine, without making it durable. */
async function capture(
  machine: MachineProcess,
  { directory, template }: CheckpointPaths,
  { isFinal }: { isFinal: boolean },
): Promise<Marker> {
  await discardCheckpoint(directory);
  await failpoint('make checkpoint directory', () =>
    mkdir(directory, { recursive: true, mode: 0o700 }),
  );
  const devices = await failpoint('save devices', () => saveDevices(machine, { isFinal }));
  const path = join(directory, FILES.devices);
  await writeFile(path, devices, { mode: 0o600 });
  const now = new Date(); // By the clock of this host, not of the storage: see `captureTime`.
  await utimes(path, now, now);
  const named = { version: 1, id: randomUUID(), template: template.key } as const;
  const changedPages = await failpoint('save pages', () =>
    savePages(machine, template, join(directory, FILES.pages), pagesKey(named, template)),
  );
  return { ...named, changedPages, devicesHash: sha256(devices) };
}

async function savePages(
  { pid }: MachineProcess,
  template: Template,
  path: string,
  key: Buffer,
): Promise<number> {
  const file = await open(path, 'wx', 0o600);
  try {
    // ramOf, not `template.mapping`: a machine of a former agent maps another file.
    return await native.saveChangedPages(pid, ramOf(pid), template.ram, file.fd, key);
  } finally {
    await file.close();
  }
}

async function commit(directory: string, marker: Marker): Promise<void> {
  await failpoint('sync checkpoint', async () => {
    await syncPath(join(directory, FILES.pages));
    await syncPath(join(directory, FILES.devices));
    await syncPath(directory);
    await syncPath(dirname(directory));
  });
  const text = JSON.stringify(marker);
  await failpoint('mark checkpoint', () => writeDurably(directory, FILES.marker, text));
}

/**
 * Copies a checkpoint for a fork.
 * @returns paths that the caller must make durable before the fork counts
 */
export async function copyCheckpoint(from: string, to: string): Promise<string[]> {
  const marker = await readFile(join(from, FILES.marker), 'utf8');
  await failpoint('make checkpoint directory', () => mkdir(to, { recursive: true, mode: 0o700 }));
  // These files never change, so both checkpoints share them as hard links.
  for (const name of [FILES.pages, FILES.devices]) await link(join(from, name), join(to, name));
  const path = join(to, FILES.marker);
  await failpoint('mark checkpoint', () => writeFile(path, marker, { mode: 0o600 }));
  return [path, to];
}

/**
 * Key of the template that a checkpoint depends on; undefined without a checkpoint.
 * @throws CheckpointError for a damaged one; any other error when the storage cannot be read
 */
export async function templateOf(directory: string): Promise<string | undefined> {
  return (await readMarker(directory))?.template;
}

/**
 * When the machine of a checkpoint stood still, in nanoseconds since 1970: its processes have
 * written nothing since. Copies of the checkpoint tell the same.
 * @throws Error when the storage cannot be read
 */
export async function captureTime(directory: string): Promise<bigint> {
  const path = join(directory, FILES.devices);
  return (await stat(path, { bigint: true }).catch(unreadable)).mtimeNs;
}

/**
 * Whether a valid checkpoint exists; a torn or damaged one does not count.
 * @throws Error when the storage cannot be read
 */
export async function hasCheckpoint(directory: string): Promise<boolean> {
  try {
    return (await readMarker(directory)) !== undefined;
  } catch (error) {
    if (error instanceof CheckpointError) return false;
    throw error;
  }
}

async function readMarker(directory: string): Promise<Marker | undefined> {
  try {
    return await readRecord(join(directory, FILES.marker), checkMarker);
  } catch (error) {
    return unreadable(error);
  }
}

/**
 * Loads its template's device state into a machine that waits to be restored. The machine is
 * stopped then, until `continueMachine`.
 */
export async function restoreTemplate(
  machine: MachineProcess,
  incoming: Writable,
  template: Template,
): Promise<void> {
  await failpoint('load devices', () => loadDevices(machine, incoming, template.devices));
}

/**
 * Loads a checkpoint's memory and device state into a machine that waits to be restored. The
 * machine is stopped then; call {@link invalidateCheckpoint} before `continueMachine`.
 * @throws CheckpointError when the checkpoint is missing, damaged, or of another template; any
 *   other error when the storage or the machine fails. The caller must kill the machine
 */
export async function restoreCheckpoint(
  machine: MachineProcess,
  incoming: Writable,
  { directory, template }: CheckpointPaths,
): Promise<void> {
  const marker = await readMarker(directory);
  if (marker === undefined) throw new CheckpointError('there is no checkpoint');
  if (marker.template !== template.key)
    throw new CheckpointError('the checkpoint depends on another template');
  const devices = await readFile(join(directory, FILES.devices)).catch(unreadable);
  if (devices.length > DEVICES_BYTES_MAX || sha256(devices) !== marker.devicesHash) {
    throw new CheckpointError('the devices of the checkpoint are damaged');
  }
  await failpoint('load pages', () => loadPages(machine, template, directory, marker));
  await failpoint('load devices', () => loadDevices(machine, incoming, devices));
}

async function loadPages(
  { pid }: MachineProcess,
  template: Template,
  directory: string,
  marker: Marker,
): Promise<void> {
  const file = await open(join(directory, FILES.pages), 'r').catch(unreadable);
  try {
    const { mapping } = template;
    const loaded = await native.loadChangedPages(pid, mapping, file.fd, pagesKey(marker, template));
    if (loaded !== marker.changedPages) {
      const missing = marker.changedPages - loaded;
      const message = `checkpoint is incomplete: ${missing} of ${marker.changedPages} pages are missing`;
      throw new CheckpointError(message);
    }
  } catch (error) {
    if (['EBADMSG', 'ESTALE'].includes(errnoOf(error) ?? '')) damaged(error);
    throw error;
  } finally {
    await file.close();
  }
}

/**
 * A storage that fails now may have the checkpoint whole: it must not be taken for a damaged one.
 */
function unreadable(error: unknown): never {
  if (isStorageError(error)) throw error;
  return damaged(error);
}

function damaged(cause: unknown): never {
  throw new CheckpointError('the checkpoint is damaged', { cause });
}

/** Makes a checkpoint invalid, durably, so that its machine may run. Idempotent. */
export async function invalidateCheckpoint(directory: string): Promise<void> {
  await failpoint('invalidate checkpoint', async () => {
    await unlink(join(directory, FILES.marker)).catch(ignoring('ENOENT'));
    // Without the directory, the marker is gone with it.
    await syncPath(directory).catch(ignoring('ENOENT'));
  });
}

/** Removes a checkpoint, its marker first. Idempotent. */
export async function discardCheckpoint(directory: string): Promise<void> {
  await invalidateCheckpoint(directory);
  await failpoint('remove checkpoint', () => rm(directory, { recursive: true, force: true }));
}
