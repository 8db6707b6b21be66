import { randomBytes } from 'node:crypto';
import { type BucketServer, s3Server } from './bucket-servers.ts';
import { Ceph } from './ceph.ts';
import { freePorts } from './ports.ts';
import { GiB } from '../../shared/units.ts';

const MEMSTORE = ['osd objectstore = memstore', `memstore device bytes = ${4 * GiB}`];

/**
 * Starts Ceph's object gateway on a cluster of one monitor and one OSD, which keeps all objects in
 * memory (radosgw(8), ceph-mon(8), ceph-osd(8)). It has no manager: nothing here needs one.
 */
export async function startRadosgw(): Promise<BucketServer> {
  await using undo = new AsyncDisposableStack();
  const ceph = undo.use(await Ceph.start({ osds: 1, osdLines: MEMSTORE, address: '127.0.0.1' }));
  const [gatewayPort = 0] = await freePorts(1);
  const credentials = {
    accessKeyId: randomBytes(10).toString('hex'),
    secretAccessKey: randomBytes(20).toString('hex'),
  };
  const { accessKeyId, secretAccessKey } = credentials;
  const keys = ['--access-key', accessKeyId, '--secret-key', secretAccessKey];
  await ceph.run('radosgw-admin', 'user', 'create', '--uid=test', '--display-name=test', ...keys);
  const frontend = `beast endpoint=127.0.0.1:${gatewayPort}`;
  const command = ['radosgw', '--name', 'client.admin', '--rgw-frontends', frontend] as const;
  await ceph.launch(command, 'radosgw', { port: gatewayPort });
  const server = s3Server(`http://127.0.0.1:${gatewayPort}`, credentials);
  undo.use(server);
  const running = undo.move();
  return {
    newBucket: () => server.newBucket(),
    [Symbol.asyncDispose]: () => running.disposeAsync(),
  };
}
