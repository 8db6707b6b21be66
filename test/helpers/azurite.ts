import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { Agent, createServer, type Server } from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { promisify } from 'node:util';
import {
  ContainerClient,
  RestError,
  type StoragePipelineOptions,
  StorageSharedKeyCredential,
} from '@azure/storage-blob';
import {
  type BucketServer,
  serverProgram,
  startListening,
  type TestBucket,
} from './bucket-servers.ts';
import { Daemon, type Environment } from './daemon.ts';
import { freePorts } from './ports.ts';

/** The account that every Azurite has; its key is public. */
const ACCOUNT = 'devstoreaccount1';
const ACCOUNT_KEY =
  'Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==';
const APPLICATION = { tenantId: 'berth.test', clientId: 'disk', clientSecret: 'the ~ right+one' };

interface Certificate {
  readonly cert: Buffer;
  readonly key: Buffer;
}

/** Azurite behind TLS, with a tenant whose application its tokens are of. */
export interface AzuriteServer extends BucketServer {
  readonly certificate: Certificate;
  /** Settings by which an agent trusts the server, and asks the tenant. */
  readonly settings: Environment;
}

const base64 = (value: object): string => Buffer.from(JSON.stringify(value)).toString('base64url');

/** A token as Azurite takes it: it looks at the claims, not at the signature. */
function newToken(): string {
  const now = Math.floor(Date.now() / 1000);
  const claims = {
    aud: 'https://storage.azure.com',
    iss: `https://sts.windows.net/${APPLICATION.tenantId}/`,
    ...{ iat: now, nbf: now - 60, exp: now + 3600 },
  };
  return `${base64({ alg: 'none', typ: 'JWT' })}.${base64(claims)}.none`;
}

/** The token endpoint of Microsoft Entra ID, as far as the client credentials grant goes. */
async function answerTenant(asked: IncomingMessage, answer: ServerResponse): Promise<void> {
  const form = new URLSearchParams(await text(asked));
  const isKnown =
    asked.method === 'POST' &&
    asked.url === `/${APPLICATION.tenantId}/oauth2/v2.0/token` &&
    form.get('grant_type') === 'client_credentials' &&
    form.get('scope') === 'https://storage.azure.com/.default' &&
    form.get('client_id') === APPLICATION.clientId &&
    form.get('client_secret') === APPLICATION.clientSecret;
  const reply = isKnown
    ? { token_type: 'Bearer', expires_in: 3600, access_token: newToken() }
    : { error: 'invalid_client', error_description: 'AADSTS7000215: Invalid client secret.' };
  answer.writeHead(isKnown ? 200 : 401, { 'content-type': 'application/json' });
  answer.end(JSON.stringify(reply));
}

async function startTenant(certificate: Certificate): Promise<{ server: Server; url: string }> {
  const server = createServer(certificate, (asked, answer) => {
    answerTenant(asked, answer).catch(() => answer.destroy());
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  if (address === null || typeof address === 'string')
    throw new Error('the tenant does not listen');
  return { server, url: `https://127.0.0.1:${address.port}` };
}

async function makeCertificate(directory: string): Promise<Certificate> {
  const [cert, key] = [join(directory, 'cert.pem'), join(directory, 'key.pem')];
  await promisify(execFile)('openssl', [
    ...['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes'],
    ...['-days', '2', '-subj', '/CN=berth.test', '-addext', 'subjectAltName=IP:127.0.0.1'],
    ...['-keyout', key, '-out', cert],
  ]);
  return { cert: await readFile(cert), key: await readFile(key) };
}

class AzureTestBucket implements TestBucket {
  readonly url: string;
  readonly credentials = APPLICATION;
  readonly #container: ContainerClient;

  constructor(container: ContainerClient, url: string) {
    this.#container = container;
    this.url = url;
  }

  get rcloneRemote(): string {
    throw new Error("Debian's rclone does not know endpoints such as Azurite's");
  }

  mountAt(url: string): Readonly<Record<string, unknown>> {
    const { containerName } = this.#container;
    return {
      ...{ type: 'azure-blob', containerName, endpoint: `${url}/${ACCOUNT}` },
      ...APPLICATION,
    };
  }

  async put(key: string, body: string | Buffer): Promise<void> {
    const bytes = Buffer.from(body);
    await this.#container.getBlockBlobClient(key).upload(bytes, bytes.length);
  }

  async get(key: string): Promise<Buffer | undefined> {
    try {
      return await this.#container.getBlobClient(key).downloadToBuffer();
    } catch (error) {
      if (error instanceof RestError && error.statusCode === 404) return undefined;
      throw error;
    }
  }

  async remove(key: string): Promise<void> {
    await this.#container.deleteBlob(key);
  }

  async keys(): Promise<string[]> {
    return (await Array.fromAsync(this.#container.listBlobsFlat())).map(({ name }) => name).sort();
  }
}

/** Starts Azurite, which keeps its blobs in memory, and a tenant, on free ports. */
export async function startAzurite(): Promise<AzuriteServer> {
  const directory = await mkdtemp(join(tmpdir(), 'berth-azurite-'));
  const certificate = await makeCertificate(directory);
  const [port = 0] = await freePorts(1);
  const url = `https://127.0.0.1:${port}`;
  const certPath = join(directory, 'cert.pem');
  const daemon = new Daemon(
    'azurite',
    [
      ...[process.execPath, serverProgram('azurite/dist/src/blob/main.js'), '--silent'],
      ...['--blobHost', '127.0.0.1', '--blobPort', String(port), '--inMemoryPersistence'],
      ...['--cert', certPath, '--key', join(directory, 'key.pem'), '--oauth', 'basic'],
      '--skipApiVersionCheck',
    ],
    {},
    join(directory, 'log'),
  );
  const tenant = await startTenant(certificate);
  const agent = new Agent({ ca: certificate.cert, keepAlive: true });
  const options: StoragePipelineOptions & { agent: Agent } = { agent };
  const credential = new StorageSharedKeyCredential(ACCOUNT, ACCOUNT_KEY);
  const newContainer = async (): Promise<ContainerClient> => {
    const name = `container-${randomBytes(6).toString('hex')}`;
    const container = new ContainerClient(`${url}/${ACCOUNT}/${name}`, credential, options);
    await container.create();
    return container;
  };
  const stop = async (): Promise<void> => {
    agent.destroy();
    tenant.server.closeAllConnections();
    tenant.server.close();
    await daemon.stop();
    await rm(directory, { recursive: true });
  };
  try {
    await startListening(daemon, port);
  } catch (error) {
    await stop();
    throw error;
  }
  return {
    certificate,
    settings: { AZURE_AUTHORITY_HOST: tenant.url, NODE_EXTRA_CA_CERTS: certPath },
    newBucket: async () => new AzureTestBucket(await newContainer(), url),
    [Symbol.asyncDispose]: stop,
  };
}
