import { createHash } from 'node:crypto';
import { closeSync } from 'node:fs';
import { mkdir, readdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { runInBackground } from '../../../../shared/background.ts';
import { toError } from '../../../../shared/errors.ts';
import type { Logger } from '../../../../shared/log.ts';
import type { Accelerator } from '../../../../shared/schemas/host.ts';
import { GUEST_MAC, type SlotPlan } from '../../../network/slots/slot.ts';
import { SerialQueue } from '../../../system/queues/serial-queue.ts';
import { exists } from '../../../system/exists.ts';
import { run } from '../../../system/spawn.ts';
import { type Shape, shapeName } from '../../driver.ts';
import { bootOnce, clearMachine } from '../process/boot-once.ts';
import { hostArchitecture, type VmHost } from '../process/launch.ts';
import { machinePaths } from '../process/machine-directory.ts';
import { bootArguments, qemuProgram, RAM_PATH, stateArguments } from '../process/qemu-arguments.ts';
import { QmpClient } from '../process/qmp-client.ts';
import { prepareRootDisk } from '../disk/root-disk.ts';
import { readIdentity, runPaths } from '../../shim/shim-files.ts';
import { configureTemplateNetwork } from './guest-network.ts';
import { evictTemplates } from './template-eviction.ts';
import {
  blankKey,
  isSameMachine,
  newTemplateRam,
  saveTemplate,
  sha256,
  Template,
  TemplateError,
  templateKey,
} from './template.ts';

export interface TemplateStoreOptions {
  readonly host: VmHost;
  /** Where the templates are kept; other hosts may share it. */
  readonly directory: string;
  /** Where the machine lives that becomes a template; of this host alone. */
  readonly makerDirectory: string;
  /** Begins the names of what this host makes aside in the shared directory. */
  readonly hostId: string;
  /** Accelerators that machines of this host may have now; new ones get the first. */
  readonly accelerators: () => readonly Accelerator[];
  readonly uid: number;
  readonly bootTimeoutMs: number;
  /** False: machines always boot. */
  readonly isEnabled: boolean;
  /** Where the machine that becomes a template leases its network slot. */
  readonly slots: { lease(): Promise<SlotPlan>; release(index: number): Promise<void> };
  /**
   * Keys of the templates that checkpoints and running machines depend on. Undefined where hosts
   * share the templates: they are not evicted.
   */
  readonly neededKeys: (() => Promise<ReadonlySet<string>>) | undefined;
  readonly log: Logger;
}

const MAKER = 'template';
const LAYER = 'template.qcow2';
/** When creation is retried after a failure; machines boot until then. */
const RETRY_MS = 60_000;

/** The parts of a template's key that are the same for all shapes. */
interface HostParts {
  readonly qemuVersion: string;
  readonly guestKey: string;
  readonly processor: string;
}

interface Entry {
  readonly key: string;
  readonly accelerator: Accelerator;
  ready: Template | undefined;
  /** Set while the template is read, so that simultaneous requests read its large file once. */
  opening: Promise<Template> | undefined;
  blank: Template | undefined;
  isCreating: boolean;
  /** By `performance.now()`. */
  retryAt: number;
}

/**
 * The templates of this host, one for each shape. The first start of a shape begins to create its
 * template from a machine that boots and is told its network. Until it is ready, machines boot with
 * a blank template, so that they can be paused like any other.
 */
export class TemplateStore {
  readonly #options: TemplateStoreOptions;
  readonly #parts: Readonly<Record<Accelerator, HostParts>>;
  readonly #entries = new Map<string, Entry>();
  /** Templates by key that machines of former guests were restored with since the agent started. */
  readonly #former = new Map<string, Promise<Template>>();
  readonly #creations = new SerialQueue();
  #isClosed = false;

  private constructor(options: TemplateStoreOptions, parts: Record<Accelerator, HostParts>) {
    this.#options = options;
    this.#parts = parts;
  }

  static async open(options: TemplateStoreOptions): Promise<TemplateStore> {
    const { host, directory } = options;
    const files = ['vmlinuz', 'initramfs'].map((name) => join(host.guestDir, name));
    const [qemuVersion, processor] = await Promise.all([
      run(qemuProgram(hostArchitecture), ['--version']),
      hashOfProcessor(),
    ]);
    const guestKey = (accelerator: Accelerator): Promise<string> =>
      hashOf(files, bootArguments(hostArchitecture, accelerator));
    const store = new TemplateStore(options, {
      kvm: { qemuVersion, guestKey: await guestKey('kvm'), processor },
      tcg: { qemuVersion, guestKey: await guestKey('tcg'), processor: '' },
    });
    await mkdir(directory, { recursive: true, mode: 0o700 });
    await store.#removeLeftovers();
    return store;
  }

  /** The template to start a machine from; a blank one means that the machine has to boot. */
  async forNew(shape: Shape): Promise<Template> {
    const [accelerator = 'tcg'] = this.#options.accelerators();
    const entry = this.#entry(shape, accelerator);
    if (this.#options.isEnabled) {
      const ready =
        entry.ready ?? (entry.isCreating ? undefined : await this.#openIfReadable(entry));
      if (ready !== undefined) return ready;
      this.#create(entry, shape);
    }
    return this.#blank(entry, shape);
  }

  /**
   * The template that a checkpoint or a running machine depends on, even if its guest is older than
   * the one that this host boots now. Its machine continues under the accelerator that it had.
   * @param machines process ids of machines that may have the template in memory
   * @throws TemplateError when the template is gone, or the host has another QEMU or processor now
   */
  async byKey(key: string, shape: Shape, machines: readonly number[] = []): Promise<Template> {
    const entry = this.#restoring(key, shape);
    if (entry === undefined) {
      throw new TemplateError('the template was made with another QEMU or processor');
    }
    if (key === entry.key) return entry.ready ?? this.#open(entry, machines);
    if (key === blankKey(entry.key)) return this.#blank(entry, shape);
    return this.#openFormer(key, machines);
  }

  /**
   * Whether machines of this host can continue from memory that stands on a template of this key.
   */
  canRestore(key: string, shape: Shape): boolean {
    return this.#restoring(key, shape) !== undefined;
  }

  /** The accelerator of machines that start from the template. */
  acceleratorOf({ key }: Pick<Template, 'key'>, shape: Shape): Accelerator {
    return this.#restoring(key, shape)?.accelerator ?? 'tcg';
  }

  #restoring(key: string, shape: Shape): Entry | undefined {
    const entries = this.#options.accelerators().map((each) => this.#entry(shape, each));
    return entries.find((entry) => isSameMachine(key, entry.key));
  }

  /** Closes all templates; running machines keep their memory. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#clearMaker();
    await this.#creations.idle;
    await Promise.allSettled([...this.#entries.values()].flatMap(({ opening }) => opening ?? []));
    for (const { ready, blank } of this.#entries.values()) {
      ready?.[Symbol.dispose]();
      blank?.[Symbol.dispose]();
    }
    this.#entries.clear();
    for (const former of await Promise.allSettled(this.#former.values())) {
      if (former.status === 'fulfilled') former.value[Symbol.dispose]();
    }
    this.#former.clear();
  }

  #entry(shape: Shape, accelerator: Accelerator): Entry {
    const name = `${accelerator} ${shapeName(shape)}`;
    let entry = this.#entries.get(name);
    if (entry === undefined) {
      const key = this.#keyOf(shape, accelerator);
      const nothing = { ready: undefined, opening: undefined, blank: undefined };
      entry = { key, accelerator, ...nothing, isCreating: false, retryAt: 0 };
      this.#entries.set(name, entry);
    }
    return entry;
  }

  #keyOf({ vcpuCount, memSizeMib }: Shape, accelerator: Accelerator): string {
    const args = stateArguments({
      architecture: hostArchitecture,
      accelerator,
      name: MAKER,
      vcpuCount,
      memSizeMib,
      memory: { kind: 'file', path: RAM_PATH, isShared: false },
      diskLayers: [LAYER],
      network: { mac: GUEST_MAC },
      isRestored: true,
    });
    const parts = this.#parts[accelerator];
    return templateKey({ ...parts, accelerator, vcpuCount, memSizeMib, arguments: args });
  }

  #blank(entry: Entry, { memSizeMib }: Shape): Template {
    return (entry.blank ??= Template.blank(entry.key, memSizeMib));
  }

  /** Opens a template with an older guest. Its files are kept while a checkpoint needs them. */
  #openFormer(key: string, machines: readonly number[]): Promise<Template> {
    const known = this.#former.get(key);
    if (known !== undefined) return known;
    const opening = Template.open(this.#path(key), key, machines);
    this.#former.set(key, opening);
    opening.catch(() => this.#former.delete(key));
    return opening;
  }

  #path(key: string): string {
    return join(this.#options.directory, key);
  }

  #open(entry: Entry, machines: readonly number[] = []): Promise<Template> {
    const read = async (): Promise<Template> => {
      try {
        return (entry.ready = await Template.open(this.#path(entry.key), entry.key, machines));
      } finally {
        entry.opening = undefined;
      }
    };
    return (entry.opening ??= read());
  }

  /**
   * @returns undefined when the template is missing or damaged, and has to be created again
   * @throws Error when the storage cannot be read: checkpoints may stand on what is there
   */
  async #openIfValid(entry: Entry): Promise<Template | undefined> {
    try {
      return await this.#open(entry);
    } catch (error) {
      if (error instanceof TemplateError) return undefined;
      throw error;
    }
  }

  /** @returns undefined also while the storage cannot be read, which {@link #create} reports */
  async #openIfReadable(entry: Entry): Promise<Template | undefined> {
    try {
      return await this.#openIfValid(entry);
    } catch {
      return undefined;
    }
  }

  /** Creates a template in the background, one at a time. */
  #create(entry: Entry, shape: Shape): void {
    if (entry.isCreating || this.#isClosed || performance.now() < entry.retryAt) return;
    entry.isCreating = true;
    runInBackground('template.create', () =>
      this.#creations.add(() => this.#createNow(entry, shape)),
    );
  }

  async #createNow(entry: Entry, shape: Shape): Promise<void> {
    const { log } = this.#options;
    const begunAt = performance.now();
    try {
      if (this.#isClosed) return;
      await this.#evict();
      // Checked before the open: only a template that was there already and cannot be opened is
      // damaged. One that another host publishes after this check must stay.
      const wasThere = await exists(this.#path(entry.key));
      if ((await this.#openIfValid(entry)) !== undefined) return;
      if (wasThere) await rm(this.#path(entry.key), { recursive: true, force: true });
      await this.#boot(entry, shape);
      await this.#open(entry);
      const durationMs = Math.round(performance.now() - begunAt);
      log.info({ ...shape, key: entry.key, durationMs }, 'template:created');
    } catch (error) {
      entry.retryAt = performance.now() + RETRY_MS;
      if (!this.#isClosed) log.warn({ ...shape, err: toError(error) }, 'template:createFailed');
    } finally {
      entry.isCreating = false;
    }
  }

  async #boot({ key, accelerator }: Entry, { vcpuCount, memSizeMib }: Shape): Promise<void> {
    const { host, uid, slots, bootTimeoutMs } = this.#options;
    const { run: runDir, disks } = machinePaths(this.#maker.directory);
    await this.#clearMaker();
    const slot = await slots.lease();
    const { index, namespace, tap, guestMac: mac } = slot;
    const ram = newTemplateRam(memSizeMib);
    try {
      await mkdir(this.#maker.directory, { recursive: true, mode: 0o700 });
      await prepareRootDisk(disks, LAYER, host.rootDisk, uid);
      const memory = { kind: 'shared', ram } as const;
      const network = { namespace, tap, mac };
      const shape = { accelerator, vcpuCount, memSizeMib };
      const spec = { ...this.#maker, ...shape, uid, memory, diskLayers: [LAYER], network };
      await bootOnce(host, spec, bootTimeoutMs, (channel) =>
        configureTemplateNetwork(channel, slot),
      );
      const identity = await readIdentity(runDir);
      if (identity === undefined) throw new Error('the shim recorded no identity of the machine');
      const monitor = await QmpClient.open(runPaths(runDir).monitor);
      try {
        const machine = { pid: identity.machine.pid, monitor };
        const aside = `.${this.#options.hostId}-${key}`;
        await saveTemplate(machine, ram, key, { directory: this.#path(key), aside });
      } finally {
        monitor.close();
      }
    } finally {
      closeSync(ram);
      await this.#clearMaker();
      await slots.release(index);
    }
  }

  get #maker(): { name: string; directory: string } {
    return { name: MAKER, directory: this.#options.makerDirectory };
  }

  #clearMaker(): Promise<void> {
    return clearMachine(this.#options.host, this.#maker);
  }

  /**
   * Removes what a former agent left half made. If that fails, the machine is cleared before the
   * next template is made, and the files are removed by the next agent start.
   */
  async #removeLeftovers(): Promise<void> {
    const { directory, hostId, log } = this.#options;
    const names = (await readdir(directory)).filter((name) => isLeftover(name, hostId));
    const removals = names.map((name) =>
      rm(join(directory, name), { recursive: true, force: true }),
    );
    for (const removal of await Promise.allSettled([this.#clearMaker(), ...removals])) {
      if (removal.status === 'fulfilled') continue;
      log.error({ err: toError(removal.reason) }, 'template:removeLeftoversFailed');
    }
  }

  /** Evicts templates, unless other hosts may need them. */
  async #evict(): Promise<void> {
    const { directory, neededKeys } = this.#options;
    if (neededKeys === undefined) return;
    const isOpen = (key: string): boolean =>
      this.#former.has(key) || [...this.#entries.values()].some((entry) => entry.key === key);
    await evictTemplates({ directory, neededKeys, isOpen });
  }
}

/** Whether this host left it half made: what another one makes just now is named after that. */
const isLeftover = (name: string, hostId: string): boolean =>
  name.startsWith('.') && (!name.startsWith('.host-') || name.startsWith(`.${hostId}-`));

/**
 * Lines of /proc/cpuinfo that a guest's state may depend on, but not those that change over time.
 */
const PROCESSOR_LINES =
  /^(?:vendor_id|cpu family|model|model name|stepping|microcode|flags|Features|CPU .+?)\s*:.*$/gmu;

async function hashOfProcessor(): Promise<string> {
  const lines = (await readFile('/proc/cpuinfo', 'utf8')).match(PROCESSOR_LINES) ?? [];
  return sha256([...new Set(lines)].toSorted().join('\n'));
}

async function hashOf(paths: readonly string[], texts: readonly string[]): Promise<string> {
  const hash = createHash('sha256').update(JSON.stringify(texts));
  for (const path of paths) hash.update(await readFile(path));
  return hash.digest('hex');
}
