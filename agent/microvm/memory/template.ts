import { createHash, randomBytes } from 'node:crypto';
import { closeSync, fstatSync, writeSync } from 'node:fs';
import { mkdir, open, readFile, rename, rm } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import Type from 'typebox';
import { GUEST_PROTOCOL_VERSION } from '../../guest-link/guest-protocol.ts';
import { compile } from '../../../shared/validate.ts';
import { native, type RamMapping } from '../../native/native.ts';
import { failpoint } from '../../system/failpoint.ts';
import { syncPath, writeDurably } from '../../system/write-durably.ts';
import {
  DEVICES_BYTES_MAX,
  type MachineProcess,
  openRamOf,
  saveDevices,
  stopMachine,
} from './machine-state.ts';
import { parseJson } from '../../../shared/json.ts';
import { MiB } from '../../../shared/units.ts';

/** Everything that a machine must share with the one whose memory it goes on with. */
export interface TemplateParts {
  /** As the program tells it, with the distribution's own number. */
  readonly qemuVersion: string;
  /** Of kernel and initramfs. */
  readonly guestKey: string;
  readonly accelerator: 'kvm' | 'tcg';
  /** What the guest sees of the host's processor; empty when it is emulated. */
  readonly processor: string;
  readonly vcpuCount: number;
  readonly memSizeMib: number;
  /** The arguments of a restored machine whose disk and network stand for all others'. */
  readonly arguments: readonly string[];
}

const KEY_HALF = 32;
/** In the place of a guest: there is none in memory that is blank. */
const NO_GUEST = '0'.repeat(KEY_HALF);

/**
 * 64 hexadecimal digits. The first half names the machine, the second the guest that it booted: what
 * goes on from memory needs the same machine, and finds its guest there.
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

/** Whether machines of both keys can go on from each other's memory. */
export const isSameMachine = (one: string, other: string): boolean =>
  one.slice(0, KEY_HALF) === other.slice(0, KEY_HALF);

/** The key of memory in which there is nothing yet, for a machine of this key. */
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

/** The template is not there, or it is not what it was: it must be made again. */
export class TemplateError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'TemplateError';
  }
}

/** Room for the RAM of a machine, all zero; such a machine maps it so that it holds what it writes. */
export const newTemplateRam = (memSizeMib: number): number =>
  native.newMemory('berth-template', memSizeMib * MiB);

/**
 * Makes a template of a machine that has just booted and of which nobody has asked anything yet. The
 * machine is stopped and of no more use.
 * @param ram its RAM: what `newTemplateRam` gave
 * @param directory of its own; it is there when this returns, durable, or not at all
 */
export async function saveTemplate(
  machine: MachineProcess,
  ram: number,
  key: string,
  directory: string,
): Promise<void> {
  await stopMachine(machine);
  const devices = await saveDevices(machine, { lastOne: true });
  const aside = join(
    dirname(directory),
    `.${basename(directory)}-${randomBytes(6).toString('hex')}`,
  );
  await failpoint('make template directory', () => mkdir(aside, { mode: 0o700 }));
  try {
    const ramBytes = fstatSync(ram).size;
    const ramHash = await failpoint('copy template', () => copyRam(ram, join(aside, FILES.ram)));
    await writeDurably(aside, FILES.devices, devices);
    const manifest = { version: 1, key, ramBytes, ramHash, devicesHash: sha256(devices) };
    await writeDurably(aside, FILES.manifest, JSON.stringify(manifest));
    await failpoint('publish template', () => rename(aside, directory));
    await syncPath(dirname(directory));
  } finally {
    await rm(aside, { recursive: true, force: true });
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
 * A template in memory that nobody can change any more; machines map it privately. Machines that
 * have it keep it alive, also when it was closed here.
 */
export class Template implements Disposable {
  readonly key: string;
  /** What is in it: one that was made again has the same key, and is another one. */
  readonly contents: string;
  /** A descriptor; machines get a copy. */
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

  /** There is nothing in it that a machine could go on with. */
  get isBlank(): boolean {
    return this.devices.length === 0;
  }

  /**
   * What a machine is booted with whose template is not there yet, so that checkpoints of it can be
   * taken: all of its memory is changes then. It has no state to begin with.
   * @param key of the template that the machine would have had
   */
  static blank(key: string, memSizeMib: number): Template {
    const ram = newTemplateRam(memSizeMib);
    try {
      writeSync(ram, Buffer.alloc(1)); // One page that is no hole: by it the mapping is found.
      native.sealMemory(ram);
      return new Template(blankKey(key), 'blank', ram, Buffer.alloc(0));
    } catch (error) {
      closeSync(ram);
      throw error;
    }
  }

  /**
   * Reads a template into memory and checks it.
   * @param machines process ids of machines that were started from it by a former agent: what they
   *   map is taken instead where it is the same and sealed, so that old and new ones share it
   * @throws TemplateError when it is not there, not whole, or another one
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
        throw new Error('its devices are not what they were');
      }
      const shared = await adoptRam(machines, manifest);
      const ram = shared ?? (await readRam(join(directory, FILES.ram), manifest));
      return new Template(key, `${manifest.ramHash} ${manifest.devicesHash}`, ram, devices);
    } catch (cause) {
      throw new TemplateError(`no template ${key}: ${String(cause)}`, { cause });
    }
  }

  [Symbol.dispose](): void {
    closeSync(this.ram);
  }
}

/** Whoever made the memory: when it is sealed and its contents are ours, it is as good as ours. */
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
      // That machine has ended, or is not what it was.
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
      if (hexHash(hash) !== manifest.ramHash) throw new Error('its RAM is not what it was');
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
