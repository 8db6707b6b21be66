import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readFile, symlink, unlink } from 'node:fs/promises';
import { promisify } from 'node:util';
import { MiB, GiB } from '../../shared/units.ts';
import { Ceph } from './ceph.ts';
import type { Daemon } from './daemon.ts';
import { waitFor } from './wait.ts';

const run = promisify(execFile);

const OSDS = 2;
const OSD_LINES = [
  'osd objectstore = bluestore',
  'bluestore block create = true', // On a sparse file.
  `bluestore block size = ${24 * GiB}`,
  `osd memory target = ${896 * MiB}`, // The least that it takes.
];
/** Ceph may be without its metadata server meanwhile. */
const BOOTED_WITHIN_MS = 180_000;
const FILE_SYSTEM = 'berth';

/*
 * A watchdog that outlives the test process: at the end of its input, which is the test's end,
 * every mount's process is killed. Without it the kernel fails whatever hangs on the mount.
 */
const WATCHDOG = 'while read -r pid; do pids="$pids $pid"; done; kill -9 $pids; exit 0';

/** A host's own mount of a file system of Ceph, in a mount namespace of the host's own. */
export interface CephMount {
  /** Where it is mounted, in the host's namespace only. */
  readonly directory: string;
  /** A file of the host's present mount namespace. */
  readonly namespace: string;
  /** Command line prefix that runs a program in the host's namespace: its command line follows. */
  readonly within: readonly string[];
  /** The client of Ceph, which may be stopped and continued. */
  readonly client: Daemon;
}

/** Has a process end that ends with its input, unless it has ended. */
async function endOfInput(child: ChildProcess): Promise<void> {
  const hasEnded = child.exitCode !== null || child.signalCode !== null;
  const ended = hasEnded ? undefined : once(child, 'exit');
  child.stdin?.end();
  await ended;
}

/**
 * CephFS of one monitor, one manager, one metadata server and two OSDs, with two copies of
 * everything.
 */
export class CephFs implements AsyncDisposable {
  readonly ceph: Ceph;
  readonly mounts: CephMount[] = [];
  readonly #watchdog: ChildProcess;
  /** The process that keeps the mount namespace of each mount, by its file. */
  readonly #holders = new Map<string, ChildProcess>();

  private constructor(ceph: Ceph) {
    this.ceph = ceph;
    const stdio = ['pipe', 'ignore', 'ignore'] as const;
    this.#watchdog = spawn('sh', ['-c', WATCHDOG], { stdio: [...stdio], detached: true });
  }

  /** @param address at which the daemons listen */
  static async start(address = '127.0.0.1'): Promise<CephFs> {
    const ceph = await Ceph.start({ osds: OSDS, osdLines: OSD_LINES, address });
    const cephFs = new CephFs(ceph);
    try {
      await cephFs.#serve();
      return cephFs;
    } catch (error) {
      await cephFs[Symbol.asyncDispose]();
      throw error;
    }
  }

  /**
   * Mounts the file system for one host, as docs/operations.md has it.
   * @param directory made if it is missing
   * @param network what runs a program in the host's network namespace
   */
  async mount(
    clientId: string,
    directory: string,
    network: readonly string[] = [],
  ): Promise<CephMount> {
    const { ceph } = this;
    const name = `client.${clientId}`;
    const keyring = `${ceph.path}/${name}`;
    await ceph.run('ceph', 'fs', 'authorize', FILE_SYSTEM, name, '/', 'rw', '-o', keyring);
    await mkdir(directory, { recursive: true });
    const namespace = `${ceph.path}/${clientId}.mounts`;
    await this.#hold(namespace);
    const within = [...network, 'nsenter', `--mount=${namespace}`];
    const options = ['--id', clientId, '--keyring', keyring, '--fuse_disable_pagecache=true'];
    const client = await ceph.launch(['ceph-fuse', ...options, directory], name, { within });
    await this.#untilMounted(directory, client);
    const mount = { directory, namespace, within, client };
    this.mounts.push(mount);
    return mount;
  }

  /** Ends a mount with its client and its namespace, as when its host loses its power. */
  async endMount({ namespace, client }: CephMount): Promise<void> {
    await client.stop('SIGKILL');
    await this.#release(namespace);
  }

  /** Mounts it in a new mount namespace with a new client, after {@link endMount}. */
  async boot({ directory, namespace, client }: CephMount): Promise<void> {
    await this.#hold(namespace);
    await waitFor(
      `${directory} to be mounted`,
      async () => {
        // The client ends when it finds no metadata server.
        client.start();
        return this.#untilMounted(directory, client).then(
          () => true,
          () => false,
        );
      },
      BOOTED_WITHIN_MS,
    );
  }

  /** Mounts it once more, with a new client, as an operator does for a host that was shut out. */
  async remount({ directory, within, client }: CephMount): Promise<void> {
    await client.stop('SIGKILL');
    await run('env', [...within, 'umount', '--lazy', directory]);
    client.start();
    await this.#untilMounted(directory, client);
  }

  /** Makes a mount namespace that stays until {@link #release}. */
  async #hold(file: string): Promise<void> {
    const holder = spawn('unshare', ['--mount', '--propagation', 'slave', 'cat'], {
      stdio: ['pipe', 'pipe', 'ignore'],
      detached: true,
    });
    this.#holders.set(file, holder);
    holder.stdin.write('\n');
    await once(holder.stdout, 'data'); // From now on its namespace is its own.
    await symlink(`/proc/${holder.pid}/ns/mnt`, file);
  }

  async #release(file: string): Promise<void> {
    const holder = this.#holders.get(file);
    if (holder === undefined) return;
    this.#holders.delete(file);
    await endOfInput(holder);
    await unlink(file);
  }

  async #untilMounted(directory: string, client: Daemon): Promise<void> {
    this.#watchdog.stdin?.write(`${client.pid}\n`);
    await waitFor(`${directory} to be mounted`, async () => {
      if (!client.isRunning) throw new Error(`ceph-fuse ended: ${await client.readLog()}`);
      // A process in the namespace shows what is mounted there.
      const mounts = await readFile(`/proc/${client.pid}/mountinfo`, 'utf8');
      return mounts.includes(` ${directory} `);
    });
  }

  async #serve(): Promise<void> {
    const { ceph } = this;
    const caps = ['mon', 'allow profile mgr', 'osd', 'allow *', 'mds', 'allow *'];
    await this.#launch('mgr', 'x', caps);
    await this.#launch('mds', 'a', [
      'mon',
      'allow profile mds',
      'mgr',
      'allow profile mds',
      'osd',
      'allow *',
      'mds',
      'allow',
    ]);
    for (const pool of ['metadata', 'data']) {
      await ceph.run('ceph', 'osd', 'pool', 'create', pool);
    }
    await ceph.run('ceph', 'fs', 'new', FILE_SYSTEM, 'metadata', 'data');
    await waitFor('the metadata server', async () =>
      JSON.stringify(await ceph.ask('mds', 'stat')).includes('up:active'),
    );
  }

  async #launch(part: 'mgr' | 'mds', id: string, caps: readonly string[]): Promise<void> {
    const { ceph } = this;
    const directory = `${ceph.path}/${part}-data`;
    const name = `${part}.${id}`;
    await mkdir(directory);
    const keyring = `${directory}/keyring`;
    await ceph.run('ceph', 'auth', 'get-or-create', name, ...caps, '-o', keyring);
    await ceph.launch([`ceph-${part}`, '--id', id, '--keyring', keyring], name);
  }

  /** Ends every mount: without its process the kernel fails whatever hangs on it. Idempotent. */
  async endMounts(): Promise<void> {
    await endOfInput(this.#watchdog);
    for (const { client } of this.mounts) await client.stop('SIGKILL');
    for (const file of [...this.#holders.keys()]) await this.#release(file);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.endMounts();
    await this.ceph[Symbol.asyncDispose]();
  }
}
