/*
 * Machines, disks and checkpoints on a host that has none: objects in memory, which outlive the
 * agent that made them as the real ones do. The host itself notices what must never happen.
 */
import { randomUUID } from 'node:crypto';
import { type GuestMemory, InMemoryGuest } from './in-memory-guest.ts';

/** How a machine ended, as it can be seen from outside. */
export type ObservedEnd = 'guest_shutdown' | 'guest_panic' | 'killed' | 'out_of_memory';

/** Files by path; only the last layer of a disk is written. */
type Layer = Map<string, string>;

export interface Disk {
  readonly uid: number;
  readonly image: string;
  layers: Layer[];
  /** Counts the changes, so that a checkpoint can be told from one of another time. */
  version: number;
}

export interface Checkpoint {
  /** The resume token of a checkpoint, which may be used once. */
  readonly token: string;
  readonly memory: GuestMemory;
  readonly diskVersion: number;
  /** A checkpoint that is not whole is being written, or was when its agent ended. */
  isWhole: boolean;
}

interface Placement {
  readonly uid: number;
  readonly slot: number;
}

/** A machine from its launch until what is left of it is removed. */
export class InMemoryVm {
  readonly id: string;
  readonly uid: number;
  readonly slot: number;
  /** The start of the host in which it was launched. */
  hostBoot: number;
  readonly guest: InMemoryGuest;
  end: ObservedEnd | undefined;
  /** Why an agent killed it; also the next agent finds this. */
  hostKill: string | undefined;
  readonly #ended = Promise.withResolvers<void>();
  readonly #host: InMemoryHost;

  constructor(host: InMemoryHost, id: string, { uid, slot }: Placement, from?: GuestMemory) {
    this.#host = host;
    this.id = id;
    this.uid = uid;
    this.slot = slot;
    this.hostBoot = host.boot;
    this.guest = new InMemoryGuest(
      {
        disk: {
          read: (path) => host.readFile(id, path),
          write: (path, text) => host.writeFile(id, path, text),
        },
        started: (processId) => host.noteStarted(processId),
        // The guest has its say first; the machine goes after that.
        ended: (how) => host.later('end of guest', id, () => this.stop(how)),
      },
      from,
    );
  }

  get isRunning(): boolean {
    return this.end === undefined;
  }

  get ended(): Promise<void> {
    return this.#ended.promise;
  }

  stop(how: ObservedEnd): void {
    if (this.end !== undefined) return;
    this.end = how;
    this.guest.disconnect();
    this.#ended.resolve();
    if (this.#host.vms.get(this.id) !== this)
      this.#host.fault(`${this.id}: an unknown machine ran`);
  }
}

/** Where disks and checkpoints are, by machine. Whoever changes one sets it again. */
export interface Storage {
  readonly disks: Map<string, Disk>;
  readonly checkpoints: Map<string, Checkpoint>;
  /** Machines of which anything is there, besides those that have one of both. */
  list(): string[];
  /** Makes the place of a copy. */
  make(id: string): void;
  remove(id: string): void;
}

const newStorage = (): Storage => ({
  ...{ disks: new Map(), checkpoints: new Map() },
  ...{ list: () => [], make: () => undefined, remove: () => undefined },
});

/** Does something outside of every agent, when its time has come. */
export type Later = (name: string, id: string, happen: () => void) => void;

const soon: Later = (_name, _id, happen) => {
  setImmediate(happen);
};

export class InMemoryHost {
  readonly disks: Map<string, Disk>;
  readonly checkpoints: Map<string, Checkpoint>;
  /** Those that run, and those that have ended and were not cleared away yet. */
  readonly vms = new Map<string, InMemoryVm>();
  /** Violations of the host's rules. */
  readonly faults: string[] = [];
  readonly later: Later;
  /** Another one after each restart. */
  boot = 1;
  readonly #storage: Storage;
  readonly #started = new Set<string>();
  readonly #resumed = new Set<string>();

  constructor(later: Later = soon, storage = newStorage()) {
    this.later = later;
    this.#storage = storage;
    this.disks = storage.disks;
    this.checkpoints = storage.checkpoints;
  }

  fault(message: string): void {
    this.faults.push(message);
  }

  /** Every sandbox that has anything here. */
  list(): string[] {
    const ids = [this.disks, this.checkpoints, this.vms].flatMap((part) => [...part.keys()]);
    return [...new Set([...ids, ...this.#storage.list()])].toSorted();
  }

  get running(): InMemoryVm[] {
    return [...this.vms.values()].filter(({ isRunning }) => isRunning);
  }

  makeDisk(id: string, uid: number, image: string): void {
    if (this.disks.has(id)) return;
    this.disks.set(id, { uid, image, layers: [new Map()], version: 0 });
  }

  readFile(id: string, path: string): string | undefined {
    return this.disks
      .get(id)
      ?.layers.findLast((layer) => layer.has(path))
      ?.get(path);
  }

  writeFile(id: string, path: string, text: string): void {
    const disk = this.disks.get(id);
    if (disk === undefined) return this.fault(`${id}: a machine ran without its disk`);
    disk.version += 1;
    disk.layers.at(-1)?.set(path, text);
    this.disks.set(id, disk);
  }

  /** From here on both write to a layer of their own above what they share. */
  copyDisk(from: string, to: string, uid: number): void {
    const disk = this.disks.get(from);
    if (disk === undefined) throw new Error(`${from} has no disk`);
    if (this.list().includes(to)) this.fault(`${to}: something of it was there before its fork`);
    // An empty top layer is enough: a disk at rest is not changed by another copy of it.
    const hasEmptyTop = disk.layers.length > 1 && disk.layers.at(-1)?.size === 0;
    const shared = hasEmptyTop ? disk.layers.slice(0, -1) : disk.layers;
    disk.layers = [...shared, new Map()];
    this.disks.set(from, disk);
    const { image, version } = disk;
    this.#storage.make(to);
    this.disks.set(to, { uid, image, layers: [...shared, new Map()], version });
  }

  launch(id: string, placement: Placement, from?: GuestMemory): InMemoryVm {
    for (const other of this.running) {
      if (other.id === id) this.fault(`${id}: two machines at once`);
      if (other.slot === placement.slot) this.fault(`${id}: shares a slot with ${other.id}`);
      if (other.uid === placement.uid) this.fault(`${id}: shares a user with ${other.id}`);
    }
    const disk = this.disks.get(id);
    if (disk === undefined) throw new Error(`${id} has no disk`);
    if (disk.uid !== placement.uid) this.fault(`${id}: its disk is of another user`);
    const vm = new InMemoryVm(this, id, placement, from);
    this.vms.set(id, vm);
    return vm;
  }

  saveCheckpoint(id: string, memory: GuestMemory): void {
    const diskVersion = this.disks.get(id)?.version ?? 0;
    this.checkpoints.set(id, { token: randomUUID(), memory, diskVersion, isWhole: false });
  }

  finishCheckpoint(id: string): void {
    const checkpoint = this.checkpoints.get(id);
    if (checkpoint === undefined) throw new Error(`${id} has no checkpoint to finish`);
    checkpoint.isWhole = true;
    this.checkpoints.set(id, checkpoint);
  }

  wholeCheckpoint(id: string): Checkpoint | undefined {
    const checkpoint = this.checkpoints.get(id);
    return checkpoint?.isWhole === true ? checkpoint : undefined;
  }

  /** The first instruction of a guest that goes on. */
  noteResumed(id: string, { token, diskVersion }: Checkpoint): void {
    if (this.#resumed.has(token)) this.fault(`${id}: went on twice from one checkpoint`);
    this.#resumed.add(token);
    if (this.checkpoints.has(id))
      this.fault(`${id}: runs beside the checkpoint that it went on from`);
    if (this.disks.get(id)?.version !== diskVersion) {
      this.fault(`${id}: its disk has changed since its checkpoint`);
    }
  }

  /** The first instruction of a guest that boots. */
  noteBooted(id: string): void {
    if (this.checkpoints.has(id)) this.fault(`${id}: booted beside a checkpoint`);
  }

  noteStarted(processId: string): void {
    if (this.#started.has(processId)) this.fault(`command ${processId} ran twice`);
    this.#started.add(processId);
  }

  /** Removes a machine's leftovers; a disk and a whole checkpoint stay. */
  clear(id: string): void {
    this.vms.get(id)?.stop('killed');
    this.vms.delete(id);
    if (this.checkpoints.get(id)?.isWhole === false) this.checkpoints.delete(id);
  }

  remove(id: string): void {
    this.clear(id);
    this.checkpoints.delete(id);
    this.disks.delete(id);
    this.#storage.remove(id);
  }

  /** Power fails: nothing runs any more, and nobody saw an end. */
  restart(): void {
    for (const vm of this.running) vm.stop('killed');
    this.boot += 1;
  }
}
