import assert from 'node:assert';
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { gzipSync } from 'node:zlib';
import { Daemon } from './daemon.ts';
import { freePorts } from './ports.ts';
import { type TarEntry, tar } from './tar.ts';
import { waitFor } from './wait.ts';

const execute = promisify(execFile);
const OCI = 'application/vnd.oci.image';
const DOCKER = 'application/vnd.docker';
export const hostArchitecture = process.arch === 'arm64' ? 'arm64' : 'amd64';

export interface TestLayer {
  /** Uncompressed. */
  readonly archive: Buffer;
  readonly blob: Buffer;
}

export interface TestImage {
  readonly digest: string;
  readonly manifest: string;
  readonly mediaType: string;
  readonly blobs: readonly Buffer[];
}

const digestOf = (bytes: Buffer | string): string =>
  `sha256:${createHash('sha256').update(bytes).digest('hex')}`;

/** A layer of these entries, compressed with gzip. */
export function layerOf(entries: readonly TarEntry[]): TestLayer {
  const archive = tar(entries);
  return { archive, blob: gzipSync(archive, { level: 1 }) };
}

/** @param options.docker spell it as Docker does */
export function imageOf(
  layers: readonly TestLayer[],
  options: {
    readonly config?: object;
    readonly architecture?: string;
    readonly os?: string;
    readonly docker?: boolean;
    /** Instead of gzip; the blobs must be compressed so. */
    readonly compression?: 'zstd';
  } = {},
): TestImage {
  const { config = {}, architecture = hostArchitecture, os = 'linux', docker = false } = options;
  const diffIds = layers.map(({ archive }) => digestOf(archive));
  const configBlob = Buffer.from(
    JSON.stringify({ architecture, os, config, rootfs: { type: 'layers', diff_ids: diffIds } }),
  );
  const descriptor = (mediaType: string, blob: Buffer) => ({
    mediaType,
    digest: digestOf(blob),
    size: blob.length,
  });
  const [type, configType, layerType] = docker
    ? [
        `${DOCKER}.distribution.manifest.v2+json`,
        `${DOCKER}.container.image.v1+json`,
        `${DOCKER}.image.rootfs.diff.tar.gzip`,
      ]
    : [
        `${OCI}.manifest.v1+json`,
        `${OCI}.config.v1+json`,
        `${OCI}.layer.v1.tar+${options.compression ?? 'gzip'}`,
      ];
  const manifest = JSON.stringify({
    schemaVersion: 2,
    mediaType: type,
    config: descriptor(configType, configBlob),
    layers: layers.map(({ blob }) => descriptor(layerType, blob)),
  });
  const blobs = [configBlob, ...layers.map(({ blob }) => blob)];
  return { digest: digestOf(manifest), manifest, mediaType: type, blobs };
}

/** A multi-platform image. @param images by architecture */
export function indexOf(images: Readonly<Record<string, TestImage>>): TestImage {
  const mediaType = `${OCI}.index.v1+json`;
  const manifests = Object.entries(images).map(([architecture, image]) => ({
    mediaType: image.mediaType,
    digest: image.digest,
    size: Buffer.byteLength(image.manifest),
    platform: { os: 'linux', architecture },
  }));
  const manifest = JSON.stringify({ schemaVersion: 2, mediaType, manifests });
  return { digest: digestOf(manifest), manifest, mediaType, blobs: [] };
}

interface Login {
  readonly username: string;
  readonly password: string;
}

/** Debian's docker-registry, on loopback, with its storage in a test's directory. */
export class TestRegistry {
  /** The registry's name in references. */
  readonly name: string;
  readonly daemon: Daemon;
  readonly #login: Login | undefined;

  private constructor(port: number, daemon: Daemon, login: Login | undefined) {
    this.name = `127.0.0.1:${port}`;
    this.daemon = daemon;
    this.#login = login;
  }

  /** For the setting IMAGE_REGISTRIES. */
  get url(): string {
    return `http://${this.name}`;
  }

  /** @param login whom it asks for; undefined: nobody */
  static async start(directory: string, label: string, login?: Login): Promise<TestRegistry> {
    const [port = 0] = await freePorts(1);
    const configPath = join(directory, `${label}.json`);
    const passwords = join(directory, `${label}.htpasswd`);
    if (login !== undefined) {
      const { stdout } = await execute('htpasswd', ['-Bbn', login.username, login.password]);
      await writeFile(passwords, stdout);
    }
    const config = {
      version: 0.1,
      log: { level: 'error' },
      storage: { filesystem: { rootdirectory: join(directory, label) } },
      http: { addr: `127.0.0.1:${port}` },
      ...(login === undefined ? {} : { auth: { htpasswd: { realm: 'test', path: passwords } } }),
    };
    await writeFile(configPath, JSON.stringify(config)); // YAML contains JSON.
    const log = join(directory, `${label}.log`);
    const daemon = new Daemon(label, ['docker-registry', 'serve', configPath], {}, log);
    daemon.start();
    const registry = new TestRegistry(port, daemon, login);
    await waitFor(`${label} to listen`, async () => {
      if (!daemon.isRunning) throw new Error(`${label} ended: ${await daemon.readLog()}`);
      return (await registry.#fetch('/v2/').catch(() => undefined))?.ok === true;
    });
    return registry;
  }

  /** @returns the reference */
  async push(repository: string, tag: string, image: TestImage): Promise<string> {
    for (const blob of image.blobs) {
      const begun = await this.#fetch(`/v2/${repository}/blobs/uploads/`, { method: 'POST' });
      const location = new URL(begun.headers.get('location') ?? '', this.url);
      location.searchParams.set('digest', digestOf(blob));
      const put = await this.#fetch(`${location.pathname}${location.search}`, {
        method: 'PUT',
        headers: { 'content-type': 'application/octet-stream' },
        body: new Uint8Array(blob),
      });
      assert(put.ok, await put.text());
    }
    for (const name of [tag, image.digest]) {
      const put = await this.#fetch(`/v2/${repository}/manifests/${name}`, {
        method: 'PUT',
        headers: { 'content-type': image.mediaType },
        body: image.manifest,
      });
      assert(put.ok, await put.text());
    }
    return `${this.name}/${repository}:${tag}`;
  }

  async #fetch(path: string, init: RequestInit = {}): Promise<Response> {
    const headers = new Headers(init.headers);
    if (this.#login !== undefined) {
      const { username, password } = this.#login;
      headers.set(
        'authorization',
        `Basic ${Buffer.from(`${username}:${password}`).toString('base64')}`,
      );
    }
    return fetch(new URL(path, this.url), { ...init, headers });
  }

  async stop(): Promise<void> {
    await this.daemon.stop();
  }
}
