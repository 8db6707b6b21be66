/*
 * A whole stack whose every connection is encrypted, with certificates that are replaced meanwhile.
 */
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { Agent, request } from 'node:https';
import type { IncomingMessage } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import tls, { type TLSSocket } from 'node:tls';
import { GetObjectCommand, PutObjectCommand, S3Client } from '@aws-sdk/client-s3';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { TestAuthority } from '../helpers/certificates.ts';
import type { Environment } from '../helpers/daemon.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { expose, hostOf, startBackend } from '../helpers/ingress.ts';
import { askWithCertificate } from '../helpers/internal-port.ts';
import { freePorts } from '../helpers/ports.ts';
import { containerSettings, createSandbox } from '../helpers/sandboxes.ts';
import { runAttached } from '../helpers/test-connection.ts';
import { Stack } from '../helpers/stack.ts';
import { newDiskUser } from '../helpers/tools.ts';
import { waitFor } from '../helpers/wait.ts';

interface Context {
  readonly directory: string;
  readonly authority: TestAuthority;
  readonly settings: Environment;
  readonly ingressPorts: readonly number[];
  readonly stack: Stack;
  readonly api: ApiClient;
}
const test = anyTest.serial as TestFn<Context>;

/** Settings of one kind of port, with a new certificate. */
async function tlsSettings(
  authority: TestAuthority,
  directory: string,
  kind: string,
  hosts?: readonly string[],
): Promise<Environment> {
  const { cert, key } = await authority.issue(directory, kind.toLowerCase(), hosts);
  return { [`${kind}_TLS_CERT`]: cert, [`${kind}_TLS_KEY`]: key };
}

test.before(async (t) => {
  const directory = await mkdtemp(join(tmpdir(), 'berth-tls-'));
  const authority = await TestAuthority.create('authority');
  Object.assign(t.context, { directory, authority });
  // The test's own connections trust it, too.
  tls.setDefaultCACertificates([...tls.getCACertificates('default'), authority.certificate]);
  const ca = join(directory, 'ca.pem');
  await writeFile(ca, authority.certificate);
  const ingressPorts = await freePorts(2);
  const kinds = ['CONTROL', 'AGENT', 'CLUSTER', 'REDIS'];
  const own = await Promise.all(kinds.map((kind) => tlsSettings(authority, directory, kind)));
  const ingress = await tlsSettings(authority, directory, 'INGRESS', ['*.sbx.localhost']);
  const settings: Environment = {
    ...containerSettings(),
    ...{ INGRESS_PORT: String(ingressPorts[0]), INGRESS_THREADS: '1' },
    ...Object.fromEntries([...own, ingress].flatMap((each) => Object.entries(each))),
    ...{ CLUSTER_TLS_CA: ca, REDIS_TLS_CA: ca },
  };
  const stack = await Stack.start(settings);
  Object.assign(t.context, { settings, ingressPorts, stack });
  const second = await stack.addAgent({ INGRESS_PORT: String(ingressPorts[1]) });
  await second.start();
  Object.assign(t.context, { api: await stack.newClient() });
});

test.after.always(async (t) => {
  await t.context.stack?.stop();
  await rm(t.context.directory, { recursive: true, force: true });
});

const setting = (context: Context, name: string): string => context.stack.environment[name] ?? '';

test('a command runs on a disk, and objects are read from it by control and by both hosts', async (t) => {
  const { api, stack } = t.context;
  const { id } = await createDisk(api);
  t.is((await exec(api, id, 'printf hello > file; cat file')).stdout, 'hello');
  const user = await newDiskUser(stack, api);
  const endpoints = [
    stack.baseUrl,
    ...stack.agents.map(({ environment }) => environment['AGENT_PUBLIC_URL'] ?? ''),
  ];
  for (const endpoint of endpoints) {
    t.regex(endpoint, /^https:/u);
    const s3 = new S3Client({
      ...{ endpoint, region: 'us-east-1', forcePathStyle: true },
      credentials: { accessKeyId: user.identifier, secretAccessKey: user.token },
    });
    const key = { Bucket: user.disk, Key: 'object' };
    await s3.send(new PutObjectCommand({ ...key, Body: endpoint }));
    const { Body } = await s3.send(new GetObjectCommand(key));
    t.is(await Body?.transformToString(), endpoint);
    s3.destroy();
  }
});

test('a session and a port of a sandbox are reached over TLS, the port by way of another host, too', async (t) => {
  const { api, stack, ingressPorts } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const session = await runAttached(api, id, 'printf over-tls');
  t.is(Buffer.concat(session.frames.map(({ bytes }) => bytes)).toString(), 'over-tls');
  const backend = await startBackend(id, 8080, stack.directory);
  await expose(api, id, 8080);
  const host = hostOf(8080, id);
  for (const port of ingressPorts) {
    const sent = request({
      host: '127.0.0.1',
      port,
      servername: host,
      path: '/request',
      headers: { host },
    });
    sent.end();
    const [answer] = (await once(sent, 'response')) as [IncomingMessage];
    answer.resume();
    t.is(answer.statusCode, 200);
  }
  await backend.stop();
});

/** The certificate that a port shows. */
async function shownBy(port: string): Promise<string> {
  const socket: TLSSocket = tls.connect({ port: Number(port), host: '127.0.0.1' });
  await once(socket, 'secureConnect');
  const { fingerprint256 } = socket.getPeerCertificate();
  socket.destroy();
  return fingerprint256;
}

test('a replaced certificate is shown to new connections, and open ones stay', async (t) => {
  const { authority, directory, api, stack } = t.context;
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const ask = async (): Promise<{ reused: boolean; status: number | undefined }> => {
    const sent = request(`${stack.baseUrl}/readyz`, { agent });
    sent.end();
    const [answer] = (await once(sent, 'response')) as [IncomingMessage];
    answer.resume();
    await once(answer, 'end');
    return { reused: sent.reusedSocket, status: answer.statusCode };
  };
  t.is((await ask()).reused, false);
  for (const kind of ['CONTROL', 'AGENT']) {
    const port = setting(t.context, `${kind}_PORT`);
    const former = await shownBy(port);
    await writeFile(join(directory, `${kind.toLowerCase()}.pem`), 'no certificate');
    await waitFor('the bad certificate to be refused', async () => {
      const node = kind === 'CONTROL' ? stack.control : stack.agent;
      return (await node.readLog()).includes('certificate:refused');
    });
    t.is(await shownBy(port), former);
    await authority.issue(directory, kind.toLowerCase());
    await waitFor('the new certificate', async () => (await shownBy(port)) !== former);
  }
  t.true((await ask()).reused, 'the connection outlived the certificate that it was made with');
  agent.destroy();

  await authority.issue(directory, 'cluster');
  await waitFor('control to load it', async () =>
    (await stack.control.readLog()).includes('cluster.pem'),
  );
  const { id } = await createDisk(api);
  t.is((await exec(api, id, 'printf again')).stdout, 'again');
});

test('internal ports answer nobody without a certificate of the cluster', async (t) => {
  const { stack, settings, directory } = t.context;
  const { CLUSTER_TLS_CA = '' } = settings;
  const stranger = await TestAuthority.create('stranger');
  const { cert, key } = await stranger.issue(directory, 'stranger');
  const ports = ['CONTROL_INTERNAL_PORT', 'AGENT_ADMIN_PORT'].map((name) =>
    setting(t.context, name),
  );
  for (const port of ports) {
    const url = `https://127.0.0.1:${port}/readyz`;
    t.is(await askWithCertificate(url, settings), 200);
    await t.throwsAsync(askWithCertificate(url, { CLUSTER_TLS_CA }));
    const wrong = { CLUSTER_TLS_CA, CLUSTER_TLS_CERT: cert, CLUSTER_TLS_KEY: key };
    await t.throwsAsync(askWithCertificate(url, wrong));
    await t.throwsAsync(fetch(`http://127.0.0.1:${port}/readyz`));
  }
  const redis = { url: stack.environment['REDIS_URL'] ?? '' };
  t.regex(redis.url, /^rediss:/u);
});

test('a host with a certificate of another authority is not linked', async (t) => {
  const { stack, directory, settings } = t.context;
  const stranger = await TestAuthority.create('stranger');
  const { cert, key } = await stranger.issue(directory, 'other-host');
  const wrong = { CLUSTER_TLS_CERT: cert, CLUSTER_TLS_KEY: key };
  const { SANDBOX_RUNTIME = 'container' } = settings;
  const agent = await stack.addAgent({ ...wrong, SANDBOX_RUNTIME });
  agent.daemon.start();
  await waitFor('the link to fail', async () => {
    const log = await agent.daemon.readLog().catch(() => '');
    return log.includes('link:failed') && log.includes('agent:ready');
  });
  t.false((await agent.daemon.readLog()).includes('link:registered'));
  await agent.daemon.stop();
});
