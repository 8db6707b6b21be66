import { execFile } from 'node:child_process';
import { randomBytes, randomUUID } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { promisify } from 'node:util';
import { type BucketServer, s3Server, startListening } from './bucket-servers.ts';
import { Daemon } from './daemon.ts';
import { freePorts } from './ports.ts';
import { temporaryDirectory } from './temporary.ts';
import { waitFor } from './wait.ts';

const run = promisify(execFile);

/** What may do anything in the cluster. */
const EVERYTHING = ['--cap', 'mon', 'allow *', '--cap', 'osd', 'allow *'];

/**
 * Starts Ceph's object gateway on a cluster of one monitor and one OSD, which keeps all objects in
 * memory (radosgw(8), ceph-mon(8), ceph-osd(8)). It has no manager: nothing here needs one.
 */
export async function startRadosgw(): Promise<BucketServer> {
  await using undo = new AsyncDisposableStack();
  const { path } = undo.use(await temporaryDirectory());
  const [monitorPort = 0, gatewayPort = 0] = await freePorts(2);
  const clusterId = randomUUID();
  const configuration = `${path}/ceph.conf`;
  await writeFile(configuration, configurationOf(path, clusterId, monitorPort));
  await mkdir(`${path}/osd-data`);
  const ceph = async (program: string, ...args: string[]): Promise<string> => {
    const options = { cwd: path, timeout: 60_000 };
    return (await run(program, ['--conf', configuration, ...args], options)).stdout;
  };
  const start = async (program: string, args: readonly string[], port?: number): Promise<void> => {
    const command = [program, '--foreground', '--conf', configuration, ...args];
    const daemon = new Daemon(program, command, {}, `${path}/${program}.out`);
    undo.defer(async () => {
      await daemon.stop('SIGKILL'); // What it keeps is thrown away.
    });
    await (port === undefined ? daemon.start() : startListening(daemon, port));
  };

  await ceph('ceph-authtool', '--create-keyring', 'mon', '--gen-key', '-n', 'mon.', ...EVERYTHING);
  await ceph('ceph-authtool', '--create-keyring', 'admin', '--gen-key', '-n', ...ADMIN);
  await ceph('ceph-authtool', 'mon', '--import-keyring', 'admin');
  const address = `[v2:127.0.0.1:${monitorPort}]`;
  await ceph('monmaptool', '--create', '--fsid', clusterId, '--addv', 'a', address, 'monmap');
  await ceph('ceph-mon', '--mkfs', '--id', 'a', '--monmap', 'monmap', '--keyring', 'mon');
  await start('ceph-mon', ['--id', 'a'], monitorPort);
  const osdId = randomUUID();
  await ceph('ceph', 'osd', 'new', osdId);
  await ceph('ceph', 'auth', 'get-or-create', 'osd.0', ...OSD, '-o', 'osd');
  await ceph('ceph-osd', '--mkfs', '--id', '0', '--osd-uuid', osdId, '--keyring', 'osd');
  await start('ceph-osd', ['--id', '0', '--keyring', `${path}/osd`]);
  await waitFor('the OSD to be up', async () => {
    const state = await ceph('ceph', 'osd', 'stat', '--format', 'json');
    return (JSON.parse(state) as { num_up_osds: number }).num_up_osds === 1;
  });

  const credentials = {
    accessKeyId: randomBytes(10).toString('hex'),
    secretAccessKey: randomBytes(20).toString('hex'),
  };
  const { accessKeyId, secretAccessKey } = credentials;
  const keys = ['--access-key', accessKeyId, '--secret-key', secretAccessKey];
  await ceph('radosgw-admin', 'user', 'create', '--uid=test', '--display-name=test', ...keys);
  const frontend = `beast endpoint=127.0.0.1:${gatewayPort}`;
  await start('radosgw', ['--name', 'client.admin', '--rgw-frontends', frontend], gatewayPort);
  const server = s3Server(`http://127.0.0.1:${gatewayPort}`, credentials);
  undo.use(server);
  const running = undo.move();
  return {
    newBucket: () => server.newBucket(),
    [Symbol.asyncDispose]: () => running.disposeAsync(),
  };
}

const ADMIN = ['client.admin', ...EVERYTHING];
const OSD = ['mon', 'allow profile osd', 'osd', 'allow *'];

const configurationOf = (path: string, clusterId: string, monitorPort: number): string =>
  `[global]
fsid = ${clusterId}
mon host = [v2:127.0.0.1:${monitorPort}]
mon initial members = a
public addr = 127.0.0.1
ms bind msgr1 = false
run dir = ${path}
admin socket = ${path}/$name.asok
log file = ${path}/$name.log
crash dir = ${path}/crash
keyring = ${path}/admin
mon data = ${path}/mon-data
osd data = ${path}/osd-data
osd objectstore = memstore
memstore device bytes = ${4 * 1024 ** 3}
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
mon allow pool size one = true
osd crush chooseleaf type = 0
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
`;
