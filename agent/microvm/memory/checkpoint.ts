import { createHash, randomUUID } from 'node:crypto';
import { link, mkdir, open, readFile, rm, unlink, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Writable } from 'node:stream';
import Type from 'typebox';
import { errnoOf } from '../../../shared/errors.ts';
import { compile } from '../../../shared/validate.ts';
import { native } from '../../native/native.ts';
import { failpoint } from '../../system/failpoint.ts';
import { syncPath, writeDurably } from '../../system/write-durably.ts';
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
import { sha256, type Template } from './template.ts';
import { parseJson } from '../../../shared/json.ts';

/*
 * A checkpoint is what a stopped machine needs to go on beside its template and its disk: the pages
 * of RAM that it changed, and the state of its devices. It counts while its marker is there. The
 * marker is written when all else is durable, and removed for good before the machine runs again:
 * from its first instruction on, its disk would not fit any more.
 */

const FILES = { pages: 'pages', devices: 'devices', marker: 'checkpoint.json' } as const;

/**
 * How long a guest may take to stop its processes and to write what its disks have in memory. For a
 * fork less than its caller waits; a pause has no caller that waits for its end.
 */
const FREEZE_MS_MAX = { pause: 60_000, fork: 8_000 } as const;
/** A machine that does not answer in this time is not asked for a fork. */
const ANSWER_MS_MAX = 5_000;

const Marker = Type.Object({
  version: Type.Literal(1),
  /** Other than that of any other checkpoint; its pages name it, too. */
  id: Type.String({ pattern: '^[0-9a-f-]{36}$' }),
  template: Type.String({ pattern: '^[0-9a-f]{64}$' }),
  changedPages: Type.Integer({ minimum: 0 }),
  devicesHash: Type.String({ pattern: '^[0-9a-f]{64}$' }),
});
type Marker = Type.Static<typeof Marker>;
const checkMarker = compile(Marker);

/** There is no checkpoint that the machine could go on with: it must start from its disk. */
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

interface CheckpointPlace {
  /** Of this checkpoint's own; made when it is missing. */
  readonly directory: string;
  readonly template: Template;
}

/** Ties the pages to one checkpoint, and to what its template contained. */
const pagesKey = ({ id }: Pick<Marker, 'id'>, { key, contents }: Template): Buffer =>
  createHash('sha256').update(`${key} ${contents} ${id}`).digest();

/**
 * Stops a machine and keeps what it needs to go on later; durable when this returns, and the machine
 * is to be killed then. When it fails, the machine goes on as if nothing had been.
 * @param disks the files that it writes to; they are made durable first
 * @throws MachineStateError when the machine neither paused nor goes on: it is to be killed
 */
export async function pauseMachine(
  machine: LiveMachine,
  place: CheckpointPlace & { readonly disks: readonly string[] },
): Promise<void> {
  await machine.guest.freeze(FREEZE_MS_MAX.pause);
  try {
    await stopMachine(machine);
    const marker = await capture(machine, place, { lastOne: true });
    await Promise.all(place.disks.map(syncPath));
    await commit(place.directory, marker);
  } catch (error) {
    await goOn(machine, error, () => discardCheckpoint(place.directory));
    throw error;
  }
}

/**
 * Finds out whether monitor and guest answer, before anything is done that would have to be undone.
 * @throws MachineFault when they do not
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
 * Keeps what a copy of a running machine needs to begin where this one is; the machine goes on after
 * a moment. The checkpoint is durable when this returns.
 * @param splitDisk lets the stopped machine go on with an empty layer of its disk
 * @returns what `splitDisk` does
 * @throws MachineStateError when the machine does not go on: it is to be killed
 */
export async function forkMachine<T>(
  machine: LiveMachine,
  place: CheckpointPlace,
  splitDisk: () => Promise<T>,
): Promise<T> {
  try {
    const { marker, split } = await captureRunning(machine, place, splitDisk);
    await commit(place.directory, marker);
    return split;
  } catch (error) {
    await discardCheckpoint(place.directory);
    throw error;
  }
}

async function captureRunning<T>(
  machine: LiveMachine,
  place: CheckpointPlace,
  splitDisk: () => Promise<T>,
): Promise<{ marker: Marker; split: T }> {
  let captured: { marker: Marker; split: T };
  await discardCheckpoint(place.directory); // What takes time is done before the machine stops.
  await machine.guest.freeze(FREEZE_MS_MAX.fork);
  try {
    await stopMachine(machine);
    const marker = await capture(machine, place, { lastOne: false });
    captured = { marker, split: await splitDisk() };
  } catch (error) {
    await goOn(machine, error);
    throw error;
  }
  await goOn(machine, undefined);
  return captured;
}

/** @param prepare done before the machine's first instruction */
async function goOn(
  machine: LiveMachine,
  cause: unknown,
  prepare: () => Promise<void> = async () => undefined,
): Promise<void> {
  try {
    await prepare();
    await continueMachine(machine);
    await machine.guest.thaw();
  } catch (error) {
    throw new MachineStateError(`the machine does not go on: ${String(error)}`, {
      cause: cause ?? error,
    });
  }
}

/** Writes the state of a stopped machine; nothing of it is durable yet. */
async function capture(
  machine: MachineProcess,
  { directory, template }: CheckpointPlace,
  { lastOne }: { lastOne: boolean },
): Promise<Marker> {
  await discardCheckpoint(directory);
  await failpoint('make checkpoint directory', () =>
    mkdir(directory, { recursive: true, mode: 0o700 }),
  );
  const devices = await failpoint('save devices', () => saveDevices(machine, { lastOne }));
  await writeFile(join(directory, FILES.devices), devices, { mode: 0o600 });
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
    // Not the template's own mapping: the machine may have been started by a former agent.
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

/** Gives a copy of the machine what this one would go on with; durable when this returns. */
export async function copyCheckpoint(from: string, to: string): Promise<void> {
  const marker = await readFile(join(from, FILES.marker), 'utf8');
  await failpoint('make checkpoint directory', () => mkdir(to, { recursive: true, mode: 0o700 }));
  // Nobody changes them: both have the same files, as long as either needs them.
  for (const name of [FILES.pages, FILES.devices]) await link(join(from, name), join(to, name));
  await syncPath(dirname(to));
  await failpoint('mark checkpoint', () => writeDurably(to, FILES.marker, marker));
}

/** Which template a checkpoint stands on; undefined when there is none. */
export async function templateOf(directory: string): Promise<string | undefined> {
  return (await readMarker(directory))?.template;
}

/** Whether there is a whole checkpoint; a torn or damaged one is none. */
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
    const text = await readFile(join(directory, FILES.marker), 'utf8');
    return checkMarker(parseJson(text), 'checkpoint');
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw new CheckpointError('the marker of the checkpoint is damaged', { cause: error });
  }
}

/**
 * Gives a machine that was started to be restored the memory and devices of its template. It is
 * stopped then, and goes on at `continueMachine`.
 */
export async function restoreTemplate(
  machine: MachineProcess,
  incoming: Writable,
  template: Template,
): Promise<void> {
  await failpoint('load devices', () => loadDevices(machine, incoming, template.devices));
}

/**
 * Gives a machine that was started to be restored the memory and devices of a checkpoint. It is
 * stopped then; `invalidateCheckpoint` comes before `continueMachine`.
 * @throws CheckpointError when there is none, or it is torn, rotten, or of another template: then
 *   the machine is to be killed
 */
export async function restoreCheckpoint(
  machine: MachineProcess,
  incoming: Writable,
  { directory, template }: CheckpointPlace,
): Promise<void> {
  const marker = await readMarker(directory);
  if (marker === undefined) throw new CheckpointError('there is no checkpoint');
  if (marker.template !== template.key) throw new CheckpointError('it has another template');
  const devices = await readFile(join(directory, FILES.devices)).catch(damaged);
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
  const file = await open(join(directory, FILES.pages), 'r').catch(damaged);
  try {
    const { mapping } = template;
    const loaded = await native.loadChangedPages(pid, mapping, file.fd, pagesKey(marker, template));
    if (loaded !== marker.changedPages) throw new CheckpointError('pages of the checkpoint miss');
  } catch (error) {
    if (['EBADMSG', 'ESTALE'].includes(errnoOf(error) ?? '')) damaged(error);
    throw error;
  } finally {
    await file.close();
  }
}

function damaged(cause: unknown): never {
  throw new CheckpointError('the checkpoint is damaged', { cause });
}

/** From here on, also after a crash, there is no checkpoint: the machine may run. Idempotent. */
export async function invalidateCheckpoint(directory: string): Promise<void> {
  await failpoint('invalidate checkpoint', async () => {
    try {
      await unlink(join(directory, FILES.marker));
    } catch (error) {
      if (errnoOf(error) !== 'ENOENT') throw error;
    }
    try {
      await syncPath(directory);
    } catch (error) {
      if (errnoOf(error) !== 'ENOENT') throw error; // Its directory is gone, and the marker with it.
    }
  });
}

/** Removes a checkpoint, its marker first. Idempotent. */
export async function discardCheckpoint(directory: string): Promise<void> {
  await invalidateCheckpoint(directory);
  await failpoint('remove checkpoint', () => rm(directory, { recursive: true, force: true }));
}
