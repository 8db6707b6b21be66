/*
 * Machines in memory whose disks and checkpoints are files in the directories of their hosts, on
 * storage that hosts share: they go along when a directory is renamed, and outlive an agent that is
 * killed. The machines themselves end with their agent, as they do when a host loses its power.
 */
import {
  appendFileSync,
  closeSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { deserialize, serialize } from 'node:v8';
import {
  BootError,
  type Machine,
  type MachineImage,
  type MachineOwner,
  type MachineSpec,
  type SharedBases,
} from '../../agent/machines/driver.ts';
import {
  copyBase,
  findBase,
  giveBase,
  moveBase,
  readBase,
  sharedBases,
} from '../../agent/machines/qemu/disk/disk-base.ts';
import type { DiskBases } from '../../agent/machines/qemu/disk/disk-bases.ts';
import { native } from '../../agent/native/native.ts';
import type { SlotNamespaces } from '../../agent/network/slots/slot-namespace.ts';
import { failpoint } from '../../agent/system/failpoint.ts';
import { errnoOf } from '../../shared/errors.ts';
import { type Gate, InMemoryDriver } from './in-memory-driver.ts';
import { type Checkpoint, type Disk, InMemoryHost } from './in-memory-host.ts';

/** Things of machines, each in a file of its machine's directory; only that makes the directory. */
class StoredMap<T> extends Map<string, T> {
  readonly #directory: string;
  readonly #name: string;

  constructor(directory: string, name: string) {
    super();
    this.#directory = directory;
    this.#name = name;
  }

  override has(id: string): boolean {
    return existsSync(this.#path(id));
  }

  override get(id: string): T | undefined {
    try {
      return deserialize(readFileSync(this.#path(id))) as T;
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return undefined;
      throw error;
    }
  }

  override set(id: string, value: T): this {
    const aside = `${this.#path(id)}.new`;
    writeFileSync(aside, serialize(value));
    renameSync(aside, this.#path(id));
    return this;
  }

  override delete(id: string): boolean {
    const isThere = this.has(id);
    rmSync(this.#path(id), { force: true });
    return isThere;
  }

  override keys(): MapIterator<string> {
    return new Set(readdirSync(this.#directory).filter((id) => this.has(id))).values();
  }

  override values(): MapIterator<T> {
    return new Set([...this.keys()].flatMap((id) => this.get(id) ?? [])).values();
  }

  #path(id: string): string {
    return join(this.#directory, id, this.#name);
  }
}

/** The machines of one agent. What must never happen is noted in the watch's directory for good. */
export class StoredHost extends InMemoryHost {
  readonly #watch: string;

  /** @param sandboxes the directory of this host's machines @param watch one of all hosts */
  constructor(sandboxes: string, watch: string) {
    const pathOf = (id: string): string => join(sandboxes, id);
    super(undefined, {
      disks: new StoredMap<Disk>(sandboxes, 'disk'),
      checkpoints: new StoredMap<Checkpoint>(sandboxes, 'checkpoint'),
      list: () => readdirSync(sandboxes),
      make: (id) => mkdirSync(pathOf(id), { recursive: true }),
      remove: (id) => rmSync(pathOf(id), { recursive: true, force: true }),
    });
    this.#watch = watch;
  }

  override fault(message: string): void {
    appendFileSync(join(this.#watch, 'faults'), `${message}\n`);
  }

  override noteResumed(id: string, checkpoint: Checkpoint): void {
    super.noteResumed(id, checkpoint);
    this.#once(checkpoint.token, `${id}: went on twice from one checkpoint`);
  }

  override noteStarted(processId: string): void {
    super.noteStarted(processId);
    this.#once(processId, `command ${processId} ran twice`);
  }

  /** Holds the machine to be the only one of its id, whichever host runs it. @returns ends that */
  async only(id: string): Promise<() => void> {
    try {
      const lock = await native.takeLock(join(this.#watch, id));
      return () => closeSync(lock);
    } catch (error) {
      if (errnoOf(error) !== 'EAGAIN') throw error;
      this.fault(`${id}: two machines at once`);
      return () => undefined;
    }
  }

  #once(what: string, fault: string): void {
    try {
      writeFileSync(join(this.#watch, `once-${what}`), '', { flag: 'wx' });
    } catch {
      this.fault(fault);
    }
  }
}

/** The default image of a host, and the copies of all hosts' images. */
interface StoredImages {
  readonly rootDisk: string;
  readonly bases: DiskBases;
}

/**
 * Its machines hold the locks of their directories, as their shims do (shim.c), and their disks
 * stand on images as those of virtual machines do.
 */
export class StoredDriver extends InMemoryDriver {
  /** Whether this host takes machines of others. */
  takes = true;
  readonly bases: SharedBases;
  readonly #host: StoredHost;
  readonly #sandboxes: string;
  readonly #images: StoredImages;

  constructor(host: StoredHost, sandboxes: string, images: StoredImages, gate: Gate) {
    super(host, { gate, hasTemplates: false });
    this.bases = sharedBases(images.bases);
    this.#host = host;
    this.#sandboxes = sandboxes;
    this.#images = images;
  }

  override async prepare(owner: MachineOwner, image?: MachineImage): Promise<void> {
    const directory = this.#directoryOf(owner.vmId);
    if ((await readBase(directory)) === undefined)
      await giveBase(directory, this.#images.rootDisk, this.#images);
    await super.prepare(owner, image);
  }

  override async fork(id: string, child: MachineOwner): Promise<void> {
    await super.fork(id, child);
    if (!(await this.hasDisk(child.vmId))) return;
    const directory = this.#directoryOf(id);
    try {
      const base = await findBase(directory, this.#images);
      await copyBase({ directory, base }, this.#directoryOf(child.vmId), this.#images);
    } catch (error) {
      await this.remove(child.vmId);
      throw error;
    }
  }

  override start(spec: MachineSpec, signal: AbortSignal): Promise<Machine> {
    return this.#locked(spec.vmId, () => super.start(spec, signal));
  }

  override resume(spec: MachineSpec, signal: AbortSignal): Promise<Machine> {
    return this.#locked(spec.vmId, () => super.resume(spec, signal));
  }

  canTake(): Promise<boolean> {
    return Promise.resolve(this.takes);
  }

  async receive({ vmId, uid }: MachineOwner): Promise<void> {
    if (await this.hasDisk(vmId))
      await failpoint('move base', () => moveBase(this.#directoryOf(vmId), this.#images));
    await failpoint('give layer', async () => {
      const disk = this.#host.disks.get(vmId);
      if (disk !== undefined) this.#host.disks.set(vmId, { ...disk, uid });
    });
  }

  #directoryOf(vmId: string): string {
    return join(this.#sandboxes, vmId);
  }

  async #locked(vmId: string, begin: () => Promise<Machine>): Promise<Machine> {
    const lock = await native
      .takeLock(join(this.#directoryOf(vmId), 'lock'))
      .catch((cause: unknown) => {
        throw new BootError('boot_failed', 'the directory is in use, or gone', { cause });
      });
    await findBase(this.#directoryOf(vmId), this.#images).catch((error: unknown) =>
      this.#host.fault(`${vmId}: ${String(error)}`),
    );
    const release = await this.#host.only(vmId);
    const end = (): void => {
      release();
      closeSync(lock);
    };
    try {
      return await begin();
    } finally {
      const machine = this.#host.vms.get(vmId);
      if (machine?.isRunning === true) machine.ended.then(end, end);
      else end();
    }
  }
}

/** Network slots that outlive an agent: a directory for each. */
export class StoredNamespaces implements SlotNamespaces {
  readonly #directory: string;

  constructor(directory: string) {
    mkdirSync(directory, { recursive: true });
    this.#directory = directory;
  }

  async list(): Promise<number[]> {
    return readdirSync(this.#directory).map(Number);
  }

  async make({ index }: { readonly index: number }): Promise<void> {
    mkdirSync(join(this.#directory, String(index)));
  }

  async renew({ index }: { readonly index: number }): Promise<boolean> {
    return existsSync(join(this.#directory, String(index)));
  }

  async remove({ index }: { readonly index: number }): Promise<void> {
    rmSync(join(this.#directory, String(index)), { recursive: true, force: true });
  }
}
