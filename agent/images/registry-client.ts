import { closeSync, writeSync } from 'node:fs';
import type { ImageReference } from '../../shared/image-reference.ts';
import { IMAGE_LIMITS } from './limits.ts';
import { KiB, MiB } from '../../shared/units.ts';
import { native } from '../native/native.ts';
import type { HostGroups } from '../system/helper-group.ts';
import { ProgramError } from '../system/spawn.ts';
import type { ImagePlatform } from './built-image.ts';
import { runConfined, secretPath, type ToolRun } from './confined-tool.ts';
import { ImageFailure, type RegistryCredentials } from './image-source.ts';
import { digestOf } from './oci-layout.ts';
import { openPullNetwork, type PullNetwork } from './pull-network.ts';
import { Traffic } from './registry-proxy.ts';
import type { RegistryRules } from './registry-rules.ts';

const MEMORY_BYTES_MAX = 512 * MiB;
const PROCESSES_MAX = 128;
/** Files of the host that skopeo sees. */
const HOST_FILES = Object.fromEntries(
  [
    '/etc/ssl',
    '/etc/ca-certificates',
    '/etc/hosts',
    '/etc/containers/certs.d',
    '/etc/docker/certs.d',
  ].map((path) => [path, path]),
);
/** A memory file has whole pages, of at most this size. */
const PAGE_BYTES = 64 * KiB;
/** Beside the bytes of an image: manifests, tokens, TLS and HTTP. */
const EXTRA_BYTES = 16 * MiB;
const EXTRA_SHARE = 1.1;

export interface RegistryClientDeps {
  readonly groups: HostGroups;
  readonly rules: RegistryRules;
  /** The user that skopeo runs as; it owns the directories that are pulled to. */
  readonly uid: number;
  readonly platform: ImagePlatform;
}

export interface PullOptions {
  readonly signal: AbortSignal;
  /** Told with the bytes received so far. */
  readonly onBytes: (bytes: number) => void;
}

/** A session with the registry of one image, by skopeo, in a network that leads nowhere else. */
export class RegistryClient {
  readonly #deps: RegistryClientDeps;
  readonly #reference: ImageReference;
  readonly #credentials: RegistryCredentials | undefined;
  readonly #network: PullNetwork;
  readonly #traffic: Traffic;
  #received = 0;
  #onReceived: () => void = () => undefined;

  private constructor(
    deps: RegistryClientDeps,
    reference: ImageReference,
    credentials: RegistryCredentials | undefined,
    open: { network: PullNetwork; traffic: Traffic },
  ) {
    this.#deps = deps;
    this.#reference = reference;
    this.#credentials = credentials;
    this.#network = open.network;
    this.#traffic = open.traffic;
  }

  static async open(
    deps: RegistryClientDeps,
    reference: ImageReference,
    credentials: RegistryCredentials | undefined,
  ): Promise<RegistryClient> {
    const traffic = new Traffic((bytes) => client.#count(bytes));
    const network = await openPullNetwork(deps.rules, traffic);
    const client = new RegistryClient(deps, reference, credentials, { network, traffic });
    return client;
  }

  close(): void {
    this.#network.close();
  }

  /**
   * The bytes of a manifest or index. skopeo does not compare them with a digest, so this does.
   * @param digest of one in the same repository; without it, that of the reference, if it has one
   * @throws ImageFailure when it is too long, or not the one that the digest names
   */
  async readManifest(
    signal: AbortSignal,
    digest: string | undefined = this.#reference.digest,
  ): Promise<string> {
    const args = ['inspect', '--raw', '--authfile', secretPath, ...this.#tls('--tls-verify')];
    const text = await this.#skopeo([...args, this.#address(digest)], {
      writes: {},
      fileBytes: MiB,
      outputBytesMax: IMAGE_LIMITS.imageManifestBytesMax + 1,
      signal,
    });
    if (Buffer.byteLength(text) > IMAGE_LIMITS.imageManifestBytesMax) {
      throw new ImageFailure('invalid_source', 'the manifest of the image is too long');
    }
    if (digest === undefined || digestOf(text) === digest) return text;
    throw new ImageFailure('interrupted', 'the registry sent another manifest than was asked for');
  }

  /**
   * Pulls a manifest with all that it names to an empty directory of the user (transport `dir`).
   */
  async pull(digest: string, to: string, bytesMax: number, options: PullOptions): Promise<void> {
    const limit = bytesMax * EXTRA_SHARE + EXTRA_BYTES;
    const tooMuch = new AbortController();
    this.#received = 0;
    this.#onReceived = () => {
      options.onBytes(Math.min(this.#received, bytesMax));
      if (this.#received > limit) {
        tooMuch.abort(
          new ImageFailure('invalid_source', 'the registry sends more than its manifest says'),
        );
      }
    };
    const args = [
      'copy',
      '--quiet',
      '--src-authfile',
      secretPath,
      ...this.#tls('--src-tls-verify'),
    ];
    await this.#skopeo(['--insecure-policy', ...args, this.#address(digest), 'dir:/pull'], {
      writes: { '/pull': to },
      fileBytes: limit,
      signal: AbortSignal.any([options.signal, tooMuch.signal]),
    });
  }

  #count(bytes: number): void {
    this.#received += bytes;
    this.#onReceived();
  }

  #tls(option: string): string[] {
    return this.#deps.rules.isPlain(this.#reference.registry) ? [`${option}=false`] : [];
  }

  #address(digest = this.#reference.digest): string {
    const { registry, repository, tag } = this.#reference;
    return `docker://${registry}/${repository}${digest === undefined ? `:${tag}` : `@${digest}`}`;
  }

  async #skopeo(
    args: readonly string[],
    run: Pick<ToolRun, 'writes' | 'fileBytes' | 'outputBytesMax' | 'signal'>,
  ): Promise<string> {
    const { groups, uid, platform } = this.#deps;
    const { namespace, proxyUrl } = this.#network;
    const secret = this.#authFile();
    try {
      return await runConfined(groups, {
        ...run,
        program: 'skopeo',
        args: ['--override-os', 'linux', '--override-arch', platform, ...args],
        reads: HOST_FILES,
        env: { HOME: '/nonexistent', HTTP_PROXY: proxyUrl, HTTPS_PROXY: proxyUrl },
        ...{ uid, namespace, secret, memoryBytes: MEMORY_BYTES_MAX, processes: PROCESSES_MAX },
      });
    } catch (error) {
      throw error instanceof ProgramError ? this.#explain(error) : error;
    } finally {
      closeSync(secret);
    }
  }

  /**
   * Credentials travel in a file that has no name anywhere and that only skopeo's own process and
   * the agent have open. Without credentials it says so, so that none of the host's own are used.
   */
  #authFile(): number {
    const { registry } = this.#reference;
    const { username, password } = this.#credentials ?? {};
    const key = registry === 'docker.io' ? 'https://index.docker.io/v1/' : registry;
    const auth = Buffer.from(`${username}:${password}`).toString('base64');
    const text = JSON.stringify({ auths: username === undefined ? {} : { [key]: { auth } } });
    const bytes = Math.ceil(Buffer.byteLength(text) / PAGE_BYTES) * PAGE_BYTES;
    const fd = native.newMemory('berth-registry', bytes);
    writeSync(fd, Buffer.alloc(bytes, ' ')); // skopeo also reads the spaces that follow the text.
    writeSync(fd, text, 0);
    return fd;
  }

  #explain(error: ProgramError): ImageFailure {
    const name = `${this.#reference.registry}/${this.#reference.repository}`;
    const { refused } = this.#traffic;
    if (refused !== undefined)
      return new ImageFailure('invalid_source', refused.message, { cause: error });
    const known = FAILURES.find(({ words }) => words.test(error.message));
    if (known === undefined) {
      return new ImageFailure(
        'interrupted',
        `the registry of ${name} could not be read; try again`,
        { cause: error },
      );
    }
    return new ImageFailure('invalid_source', `${known.says}: ${name}`, { cause: error });
  }
}

/** Messages of skopeo about failures that will be the same next time. */
const FAILURES = [
  {
    words:
      /unauthorized|authentication required|denied|invalid username\/password|status code 403/iu,
    says: 'the registry denies access, or there is no such image',
  },
  {
    words: /manifest unknown|name unknown|not found|repository name not known|status code 404/iu,
    says: 'the registry has no such image',
  },
  { words: /no such host/iu, says: 'there is no such registry' },
  {
    words: /server gave HTTP response to HTTPS client/iu,
    says: 'the registry has no TLS, and IMAGE_REGISTRIES does not name it with http://',
  },
] as const;
