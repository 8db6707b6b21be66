import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { promisify } from 'node:util';
import { startListening } from './bucket-servers.ts';
import { Daemon } from './daemon.ts';
import { freePorts } from './ports.ts';
import { temporaryDirectory } from './temporary.ts';
import { waitFor } from './wait.ts';

const run = promisify(execFile);

/** A first answer of ceph(1) takes a second or two on a busy machine, and daemons may be away. */
const ANSWER_MS = 60_000;
const EVERYTHING = ['mon', 'osd', 'mds', 'mgr'].flatMap((part) => ['--cap', part, 'allow *']);
const OSD = ['mon', 'allow profile osd', 'osd', 'allow *', 'mgr', 'allow profile osd'];

export interface CephOptions {
  /** OSDs; with two or more, every object has two copies. */
  readonly osds: number;
  /** Lines of ceph.conf(5), section `[osd]`: where the OSDs keep their data. */
  readonly osdLines: readonly string[];
  /** The address at which the daemons listen. */
  readonly address: string;
}

const configurationOf = (
  path: string,
  { osds, osdLines, address }: CephOptions,
  monitorPort: number,
): string =>
  `[global]
fsid = ${randomUUID()}
mon host = [v2:${address}:${monitorPort}]
mon initial members = a
public addr = ${address}
ms bind msgr1 = false
run dir = ${path}
admin socket = ${path}/$name.asok
log file = ${path}/$name.log
crash dir = ${path}/crash
keyring = ${path}/admin
mon data = ${path}/mon-data
mgr data = ${path}/mgr-data
mds data = ${path}/mds-data
mgr initial modules =
osd data = ${path}/$name
osd pool default size = ${Math.min(osds, 2)}
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
mon allow pool size one = true
osd crush chooseleaf type = 0
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
[osd]
${osdLines.join('\n')}
`;

/**
 * A small Ceph of Debian's packages on this machine: one monitor and OSDs with an address of their
 * own, on files below a temporary directory. It is thrown away with everything in it at the end.
 */
export class Ceph implements AsyncDisposable {
  readonly path: string;
  readonly configuration: string;
  /** By name, such as `mon.a` and `osd.0`. */
  readonly daemons = new Map<string, Daemon>();
  readonly #undo = new AsyncDisposableStack();

  readonly #address: string;

  private constructor(path: string, address: string) {
    this.path = path;
    this.#address = address;
    this.configuration = `${path}/ceph.conf`;
  }

  static async start(options: CephOptions): Promise<Ceph> {
    const directory = await temporaryDirectory();
    const ceph = new Ceph(directory.path, options.address);
    ceph.#undo.use(directory);
    try {
      await ceph.#start(options);
      return ceph;
    } catch (error) {
      await ceph[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** Runs one of Ceph's programs with the cluster's configuration. @returns what it prints */
  async run(program: string, ...args: string[]): Promise<string> {
    const options = { cwd: this.path, timeout: ANSWER_MS };
    return (await run(program, ['--conf', this.configuration, ...args], options)).stdout;
  }

  /** Asks ceph(8). @returns its answer as JSON */
  async ask<T>(...args: string[]): Promise<T> {
    return JSON.parse(await this.run('ceph', ...args, '--format', 'json')) as T;
  }

  /**
   * Starts a daemon that is ended with the cluster.
   * @param name such as `osd.0`
   * @param port waits until it listens there, at the cluster's address
   * @param within what starts it, with its arguments: its command line follows them
   */
  async launch(
    [program, ...args]: readonly [string, ...string[]],
    name: string,
    { port, within = [] }: { port?: number; within?: readonly string[] } = {},
  ): Promise<Daemon> {
    const command = [...within, program, '-f', '--conf', this.configuration, ...args];
    const daemon = new Daemon(name, command, {}, `${this.path}/${name}.out`);
    daemon.isDetached = true; // A Ctrl-C at the terminal ends the test, which ends this daemon.
    this.daemons.set(name, daemon);
    this.#undo.defer(async () => {
      await daemon.stop('SIGKILL'); // Its data is thrown away.
    });
    await (port === undefined ? daemon.start() : startListening(daemon, port, this.#address));
    return daemon;
  }

  async #start(options: CephOptions): Promise<void> {
    const { path } = this;
    const [monitorPort = 0] = await freePorts(1);
    await writeFile(this.configuration, configurationOf(path, options, monitorPort));
    const admin = ['-n', 'client.admin', ...EVERYTHING];
    await this.run(
      'ceph-authtool',
      '--create-keyring',
      'mon',
      '--gen-key',
      '-n',
      'mon.',
      ...EVERYTHING,
    );
    await this.run('ceph-authtool', '--create-keyring', 'admin', '--gen-key', ...admin);
    await this.run('ceph-authtool', 'mon', '--import-keyring', 'admin');
    const address = `[v2:${options.address}:${monitorPort}]`;
    const fsid = (await this.run('ceph-conf', '--lookup', 'fsid')).trim();
    await this.run('monmaptool', '--create', '--fsid', fsid, '--addv', 'a', address, 'monmap');
    await this.run('ceph-mon', '--mkfs', '--id', 'a', '--monmap', 'monmap', '--keyring', 'mon');
    await this.launch(['ceph-mon', '--id', 'a'], 'mon.a', { port: monitorPort });
    for (let id = 0; id < options.osds; id += 1) await this.#startOsd(String(id));
    await waitFor('the OSDs to be up', async () => {
      const { num_up_osds: up } = await this.ask<{ num_up_osds: number }>('osd', 'stat');
      return up === options.osds;
    });
  }

  async #startOsd(id: string): Promise<void> {
    const name = `osd.${id}`;
    const keyring = `${this.path}/${name}/keyring`;
    const osdId = randomUUID();
    await mkdir(`${this.path}/${name}`);
    await this.run('ceph', 'osd', 'new', osdId);
    await this.run('ceph', 'auth', 'get-or-create', name, ...OSD, '-o', keyring);
    await this.run('ceph-osd', '--mkfs', '--id', id, '--osd-uuid', osdId, '--keyring', keyring);
    await this.launch(['ceph-osd', '--id', id, '--keyring', keyring], name);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#undo.disposeAsync();
  }
}
