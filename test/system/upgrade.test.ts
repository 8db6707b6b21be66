/*
 * All parts of a cluster are replaced one by one, and so are its secrets and certificates, while
 * callers go on.
 */
import { randomBytes } from 'node:crypto';
import tls from 'node:tls';
import test, { type ExecutionContext } from 'ava';
import { paths } from '../../scripts/local-paths.ts';
import { type ClusterOptions, TestCluster } from '../helpers/cluster.ts';
import { TestAuthority } from '../helpers/certificates.ts';
import type { ClusterNode } from '../helpers/cluster-node.ts';
import { ClusterLoad } from '../helpers/cluster-load.ts';
import { checkOutFormer } from '../helpers/former-version.ts';
import { isFull } from '../helpers/full.ts';
import { beginCounting, lastCount } from '../helpers/counting.ts';
import {
  bring,
  commandSandbox,
  containerSettings,
  createSandbox,
  outputOf,
  sandboxSettings,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';
import { waitFor } from '../helpers/wait.ts';

const containers = { agentSettings: { ...containerSettings(), EXEC_SLOTS: '8' } };

/** Callers of a cluster see nothing but what is documented while it is changed. */
async function changeUnderLoad(
  t: ExecutionContext,
  options: ClusterOptions,
  change: (cluster: TestCluster) => Promise<void>,
): Promise<void> {
  const cluster = await TestCluster.start(options);
  try {
    const load = new ClusterLoad(await cluster.newClient());
    try {
      await load.addAll();
      await change(cluster);
    } finally {
      await load.end();
    }
    t.log(load.report);
    t.deepEqual(load.report.failures, []);
  } finally {
    await cluster.stop();
  }
}

/** Restarts agents, then control nodes, as nodes of this version. */
async function replaceAll(
  t: ExecutionContext,
  cluster: TestCluster,
  prepare: (node: ClusterNode) => Promise<void> = async () => undefined,
): Promise<void> {
  for (const node of [...cluster.agents, ...cluster.controls]) {
    t.log(new Date().toISOString(), node.machine.name);
    await prepare(node);
    const where = ['--root', node.root, '--address', node.machine.address];
    await node.script(paths.root, 'install', [node.role, ...where]);
    await cluster.restart(node);
  }
}

type Secrets = Readonly<Record<string, string>>;

const newSecrets = (): Secrets => ({
  CLUSTER_SECRET: randomBytes(32).toString('base64url'),
  ENCRYPTION_KEY: randomBytes(32).toString('base64'),
  SIGNING_KEYS: randomBytes(32).toString('base64url'),
});

/** Gives each node rings of these secrets, in this order; agents have no signing keys. */
const rollTo = (t: ExecutionContext, cluster: TestCluster, ...secrets: Secrets[]): Promise<void> =>
  replaceAll(t, cluster, async (node) => {
    const names = ['CLUSTER_SECRET', 'ENCRYPTION_KEY'];
    if (node.role === 'control') names.push('SIGNING_KEYS');
    const rings = names.map((name) => [name, secrets.map((each) => each[name]).join(',')]);
    await node.configure(Object.fromEntries(rings) as Secrets);
  });

const formerSecrets = async ({ controls: [control] }: TestCluster): Promise<Secrets> =>
  (await control?.settings()) ?? {};

/** The authority that has signed the certificate which a control node shows now. */
const issuerAt = ({ machine }: ClusterNode): Promise<string | undefined> =>
  new Promise((resolve, reject) => {
    const socket = tls.connect({ host: machine.address, port: 8700 }, () => {
      resolve(String(socket.getPeerCertificate().issuer['CN']));
      socket.destroy();
    });
    socket.on('error', reject);
  });

test.serial(
  'nodes restart one by one with more secrets, then get other certificates, and callers notice nothing else than is documented',
  (t) =>
    changeUnderLoad(t, containers, async (cluster) => {
      await rollTo(t, cluster, await formerSecrets(cluster), newSecrets());
      await cluster.renewCertificates();
    }),
);

const fullTest = isFull ? test.serial : test.serial.skip;

fullTest('all secrets and the authority of all certificates are replaced', async (t) => {
  t.timeout(900_000);
  const nextAuthority = await TestAuthority.create('next');
  await changeUnderLoad(t, { ...containers, nextAuthority }, async (cluster) => {
    const [former, next] = [await formerSecrets(cluster), newSecrets()];
    await rollTo(t, cluster, former, next);
    await rollTo(t, cluster, next, former);
    const { failed = [] } = await cluster.reseal();
    t.deepEqual(failed, []);
    await rollTo(t, cluster, next);
    await cluster.renewCertificates(nextAuthority);
    for (const node of cluster.controls) {
      await waitFor('the new certificate', async () => (await issuerAt(node)) === 'Authority next');
    }
    // Links over the new certificates, with the next secrets alone.
    for (const node of [cluster.agents[0], cluster.controls[0]]) {
      if (node !== undefined) await cluster.restart(node);
    }
  });
});

fullTest('all nodes of the version before are upgraded', async (t) => {
  t.timeout(600_000);
  await using directory = await temporaryDirectory();
  const checkout = await checkOutFormer(directory.path);
  const agentSettings = { ...sandboxSettings(), EXEC_SLOTS: '8' };
  await changeUnderLoad(t, { checkout, agentSettings }, async (cluster) => {
    const api = await cluster.newClient();
    const { sandbox_id: id } = await createSandbox(api);
    await outputOf(api, id, beginCounting('/tmp/count', 0.05));
    const count = async (): Promise<number> =>
      Number(await outputOf(api, id, lastCount('/tmp/count')));
    await waitFor('a process to count', async () => (await count()) > 0);
    await bring(api, id, 'pause', 'paused');
    await replaceAll(t, cluster);
    // A control node that has just started may not have its hosts yet.
    await waitFor('the sandbox to be resumed', async () => {
      const { status } = await commandSandbox(api, id, 'resume');
      return status === 200;
    });
    t.is((await settledSandbox(api, id)).status, 'running');
    const seen = (): Promise<number> => count().catch(() => 0);
    await waitFor('the sandbox to answer', async () => (await seen()) > 0);
    const resumed = await seen();
    await waitFor('the process to go on', async () => (await seen()) > resumed);
  });
});
