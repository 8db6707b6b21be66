import { createHash, randomBytes } from 'node:crypto';
import { closeSync, fstatSync, writeSync } from 'node:fs';
import { mkdir, open, readFile, rename, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import Type from 'typebox';
import { GUEST_PROTOCOL_VERSION } from '../../guest-link/guest-protocol.ts';
import type { Accelerator } from '../../../../shared/schemas/host.ts';
import { errnoOf } from '../../../../shared/errors.ts';
import { compile } from '../../../../shared/validate.ts';
import { native, type RamMapping } from '../../../native/native.ts';
import { failpoint } from '../../../system/failpoint.ts';
import { syncPath, writeDurably } from '../../../system/write-durably.ts';
import {
  DEVICES_BYTES_MAX,
  type MachineProcess,
  openRamOf,
  saveDevices,
  stopMachine,
} from './machine-state.ts';
import { parseJson } from '../../../../shared/json.ts';
import { MiB } from '../../../../shared/units.ts';

/** The parts in which two machines must agree for one to continue from the other's memory. */
export interface TemplateParts {
  /** The output of `--version`, which includes the distribution's package version. */
  readonly qemuVersion: string;
  /** Hash of kernel, initramfs, and what a guest is told when it boots. */
  readonly guestKey: string;
  readonly accelerator: Accelerator;
  /** Hash of what the guest sees of the host's processor; empty when the processor is emulated. */
  readonly processor: string;
  readonly vcpuCount: number;
  readonly memSizeMib: number;
  /**
   * QEMU's arguments that a restored machine's state depends on, with a stand-in for disk and
   * network.
   */
  readonly arguments: readonly string[];
}

const KEY_HALF = 32;
/** The guest's half of a blank template's key. */
const NO_GUEST = '0'.repeat(KEY_HALF);

/**
 * A key of 64 hexadecimal digits. The first half stands for the machine, the second for the guest
 * that it booted. Restoring needs the same machine; the guest comes with the memory.
 */
export function templateKey(parts: TemplateParts): string {
  const { qemuVersion, accelerator, processor, vcpuCount, memSizeMib } = parts;
  const machine = [
    ...['template 2', GUEST_PROTOCOL_VERSION, qemuVersion, accelerator, processor],
    ...[vcpuCount, memSizeMib, parts.arguments],
  ];
  const halves = [JSON.stringify(machine), parts.guestKey];
  return halves.map((half) => sha256(half).slice(0, KEY_HALF)).join('');
}

/** Whether a machine of one key can continue from the memory of the other. */
export const isSameMachine = (one: string, other: string): boolean =>
  one.slice(0, KEY_HALF) === other.slice(0, KEY_HALF);

/** The key of the blank template for machines of this key. */
export const blankKey = (key: string): string => key.slice(0, KEY_HALF) + NO_GUEST;

export const sha256 = (contents: string | Buffer): string =>
  createHash('sha256').update(contents).digest('hex');

const FILES = { ram: 'ram', devices: 'devices', manifest: 'template.json' } as const;

const Manifest = Type.Object({
  version: Type.Literal(1),
  key: Type.String({ pattern: '^[0-9a-f]{64}$' }),
  ramBytes: Type.Integer({ minimum: 1 }),
  ramHash: Type.String({ pattern: '^[0-9a-f]{16}$' }),
  devicesHash: Type.String({ pattern: '^[0-9a-f]{64}$' }),
});
const checkManifest = compile(Manifest);

/** The template is missing, damaged or of another kind. */
export class TemplateError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'TemplateError';
  }
}

/** Whether the storage failed, rather than that there is nothing, or something damaged. */
export const isStorageError = (error: unknown): boolean =>
  !['ENOENT', 'ENOTDIR', undefined].includes(errnoOf(error));

/** Creates a memory file for the RAM of a machine that becomes a template, all zero. */
export const newTemplateRam = (memSizeMib: number): number =>
  native.newMemory('berth-template', memSizeMib * MiB);

/**
 * Makes a template of a machine that has just booted and knows nothing but its network. The machine
 * is stopped; the caller must kill it.
 * @param ram the machine's RAM, from {@link newTemplateRam}
 * @param place.directory the template's own; it appears only when it is complete and durable. One
 *   that another host has put there meanwhile stays: checkpoints may stand on it
 * @param place.aside begins the name, beside it, of what is not complete
 */
export async function saveTemplate(
  machine: MachineProcess,
  ram: number,
  key: string,
  { directory, aside: name }: { readonly directory: string; readonly aside: string },
): Promise<void> {
  await stopMachine(machine);
  const devices = await saveDevices(machine, { isFinal: true });
  const aside = join(dirname(directory), `${name}-${randomBytes(6).toString('hex')}`);
  await failpoint('make template directory', () => mkdir(aside, { mode: 0o700 }));
  try {
    const ramBytes = fstatSync(ram).size;
    const ramHash = await failpoint('copy template', () => copyRam(ram, join(aside, FILES.ram)));
    await writeDurably(aside, FILES.devices, devices);
    const manifest = { version: 1, key, ramBytes, ramHash, devicesHash: sha256(devices) };
    await writeDurably(aside, FILES.manifest, JSON.stringify(manifest));
    await failpoint('publish template', () => renameIfNew(aside, directory));
    await syncPath(dirname(directory));
  } finally {
    await rm(aside, { recursive: true, force: true });
  }
}

async function renameIfNew(from: string, to: string): Promise<void> {
  try {
    await rename(from, to);
  } catch (error) {
    if (!['ENOTEMPTY', 'EEXIST'].includes(errnoOf(error) ?? '')) throw error;
  }
}

async function copyRam(ram: number, path: string): Promise<string> {
  const file = await open(path, 'wx+', 0o600);
  try {
    const hash = await native.copyMemory(ram, file.fd, fstatSync(ram).size);
    await file.sync();
    return hexHash(hash);
  } finally {
    await file.close();
  }
}

const hexHash = (hash: bigint): string => hash.toString(16).padStart(16, '0');

/**
 * A template in sealed memory, which machines map privately. Their mappings stay valid after the
 * template is closed here.
 */
export class Template implements Disposable {
  readonly key: string;
  /** Hash of the contents, which differ between templates that were made with the same key. */
  readonly contents: string;
  /** Descriptor of the memory file; machines get a copy. */
  readonly ram: number;
  readonly mapping: RamMapping;
  readonly devices: Buffer;

  private constructor(key: string, contents: string, ram: number, devices: Buffer) {
    const { dev, ino, size } = fstatSync(ram, { bigint: true });
    this.key = key;
    this.contents = contents;
    this.ram = ram;
    this.mapping = { device: dev, inode: ino, sizeBytes: Number(size) };
    this.devices = devices;
  }

  /** Whether it has no state that a machine could start from. */
  get isBlank(): boolean {
    return this.devices.length === 0;
  }

  /**
   * An empty template for a machine that boots, so that it can be paused: its whole memory counts
   * as changed.
   * @param key key of the template that the machine would have been started from
   */
  static blank(key: string, memSizeMib: number): Template {
    const ram = newTemplateRam(memSizeMib);
    try {
      writeSync(ram, Buffer.alloc(1)); // A page of data, by which the mapping is found.
      native.sealMemory(ram);
      return new Template(blankKey(key), 'blank', ram, Buffer.alloc(0));
    } catch (error) {
      closeSync(ram);
      throw error;
    }
  }

  /**
   * Reads a template into memory and verifies it.
   * @param machines process ids of machines that a former agent started from it: if one maps the
   *   same sealed contents, that mapping is used instead of a second copy in memory
   * @throws TemplateError when the template is missing, damaged or has another key; any other error
   *   when the storage cannot be read: what is there may be whole, and must not be replaced
   */
  static async open(
    directory: string,
    key: string,
    machines: readonly number[] = [],
  ): Promise<Template> {
    try {
      const text = await readFile(join(directory, FILES.manifest), 'utf8');
      const manifest = checkManifest(parseJson(text), 'template');
      const devices = await readFile(join(directory, FILES.devices));
      if (manifest.key !== key) throw new Error('it has another key');
      if (devices.length > DEVICES_BYTES_MAX || sha256(devices) !== manifest.devicesHash) {
        throw new Error('the state of its devices is damaged');
      }
      const shared = await adoptRam(machines, manifest);
      const ram = shared ?? (await readRam(join(directory, FILES.ram), manifest));
      return new Template(key, `${manifest.ramHash} ${manifest.devicesHash}`, ram, devices);
    } catch (cause) {
      if (isStorageError(cause)) throw cause;
      throw new TemplateError(`no template ${key}: ${String(cause)}`, { cause });
    }
  }

  [Symbol.dispose](): void {
    closeSync(this.ram);
  }
}

/** Finds sealed memory with the template's exact contents in a machine, whoever created it. */
async function adoptRam(
  machines: readonly number[],
  manifest: Type.Static<typeof Manifest>,
): Promise<number | undefined> {
  for (const pid of machines) {
    let ram: number | undefined;
    try {
      ram = openRamOf(pid);
      const isOurs = native.isSealed(ram) && fstatSync(ram).size === manifest.ramBytes;
      const hash = isOurs ? await native.copyMemory(ram, -1, manifest.ramBytes) : -1n;
      if (hexHash(hash) === manifest.ramHash) return ram;
    } catch {
      // The machine has ended or has replaced its files.
    }
    if (ram !== undefined) closeSync(ram);
  }
  return undefined;
}

async function readRam(path: string, manifest: Type.Static<typeof Manifest>): Promise<number> {
  const file = await open(path, 'r');
  try {
    const ram = native.newMemory('berth-template', manifest.ramBytes);
    try {
      const hash = await native.copyMemory(file.fd, ram, manifest.ramBytes);
      if (hexHash(hash) !== manifest.ramHash) throw new Error('its RAM is damaged');
      native.sealMemory(ram);
      return ram;
    } catch (error) {
      closeSync(ram);
      throw error;
    }
  } finally {
    await file.close();
  }
}
