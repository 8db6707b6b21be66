import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  CreateBucketCommand,
  DeleteObjectCommand,
  GetObjectCommand,
  NoSuchKey,
  paginateListObjectsV2,
  PutObjectCommand,
  S3Client,
} from '@aws-sdk/client-s3';
import type { ApiClient } from './api.ts';
import { Daemon } from './daemon.ts';
import { freePorts } from './ports.ts';
import type { Stack } from './stack.ts';
import { newDiskUser } from './tools.ts';
import { waitFor } from './wait.ts';

/** A bucket as a test uses it beside the disk that stands on it. */
export interface TestBucket {
  /** Where the server is; a mount may name a front of it instead. */
  readonly url: string;
  readonly credentials: Readonly<Record<string, string>>;
  /** The bucket as rclone takes it. */
  readonly rcloneRemote: string;
  /** The mount of a disk that stands on the bucket, reached at this URL. */
  mountAt(url: string): Readonly<Record<string, unknown>>;
  put(key: string, body: string | Buffer): Promise<void>;
  /** @returns undefined when there is no such object */
  get(key: string): Promise<Buffer | undefined>;
  remove(key: string): Promise<void>;
  keys(): Promise<string[]>;
}

/** Object storage that a test runs against. */
export interface BucketServer extends AsyncDisposable {
  newBucket(): Promise<TestBucket>;
}

/** Third-party servers, which `scripts/test` installs. */
export function serverProgram(path: string): string {
  const program = new URL(`../servers/node_modules/${path}`, import.meta.url).pathname;
  if (!existsSync(program)) throw new Error(`${program} is missing: run scripts/test once`);
  return program;
}

/** Starts a server and waits until it listens. */
export async function startListening(
  daemon: Daemon,
  port: number,
  address = '127.0.0.1',
): Promise<void> {
  daemon.start();
  await waitFor(`${daemon.name} to listen`, async () => {
    if (!daemon.isRunning) throw new Error(`${daemon.name} ended: ${await daemon.readLog()}`);
    const socket = connect(port, address);
    try {
      await once(socket, 'connect');
      return true;
    } catch {
      return false;
    } finally {
      socket.destroy();
    }
  });
}

class S3TestBucket implements TestBucket {
  readonly url: string;
  readonly credentials: { accessKeyId: string; secretAccessKey: string };
  readonly #client: S3Client;
  readonly #name: string;

  constructor(
    client: S3Client,
    url: string,
    name: string,
    credentials: S3TestBucket['credentials'],
  ) {
    this.#client = client;
    this.url = url;
    this.#name = name;
    this.credentials = credentials;
  }

  get rcloneRemote(): string {
    const { accessKeyId, secretAccessKey } = this.credentials;
    const keys = `access_key_id="${accessKeyId}",secret_access_key="${secretAccessKey}"`;
    const place = `endpoint="${this.url}",region=us-east-1`;
    return `:s3,provider=Other,force_path_style=true,${keys},${place}:${this.#name}`;
  }

  mountAt(url: string): Readonly<Record<string, unknown>> {
    const place = { bucketName: this.#name, bucketEndpoint: url };
    return { type: 's3-compatible', ...place, ...this.credentials };
  }

  async put(key: string, body: string | Buffer): Promise<void> {
    await this.#client.send(new PutObjectCommand({ ...this.#of(key), Body: Buffer.from(body) }));
  }

  async get(key: string): Promise<Buffer | undefined> {
    try {
      const { Body } = await this.#client.send(new GetObjectCommand(this.#of(key)));
      return Buffer.from((await Body?.transformToByteArray()) ?? []);
    } catch (error) {
      if (error instanceof NoSuchKey) return undefined;
      throw error;
    }
  }

  async remove(key: string): Promise<void> {
    await this.#client.send(new DeleteObjectCommand(this.#of(key)));
  }

  async keys(): Promise<string[]> {
    const keys: string[] = [];
    for await (const page of paginateListObjectsV2(
      { client: this.#client },
      { Bucket: this.#name },
    )) {
      keys.push(...(page.Contents ?? []).map(({ Key = '' }) => Key));
    }
    return keys.sort();
  }

  #of(key: string): { Bucket: string; Key: string } {
    return { Bucket: this.#name, Key: key };
  }
}

const clientOf = (endpoint: string, credentials: S3TestBucket['credentials']): S3Client =>
  new S3Client({ endpoint, region: 'us-east-1', forcePathStyle: true, credentials });

/** Buckets of a server that speaks S3, which its caller starts and stops. */
export function s3Server(url: string, credentials: S3TestBucket['credentials']): BucketServer {
  const client = clientOf(url, credentials);
  return {
    newBucket: async () => {
      const name = `bucket-${randomBytes(6).toString('hex')}`;
      await client.send(new CreateBucketCommand({ Bucket: name }));
      return new S3TestBucket(client, url, name, credentials);
    },
    [Symbol.asyncDispose]: async () => client.destroy(),
  };
}

/** Buckets that are other disks of the stack, by its own object API. */
export function berthServer(stack: Stack, api: ApiClient): BucketServer {
  const clients: S3Client[] = [];
  return {
    newBucket: async () => {
      const { disk, identifier, token, s3Url } = await newDiskUser(stack, api);
      const credentials = { accessKeyId: identifier, secretAccessKey: token };
      const client = clientOf(s3Url, credentials);
      clients.push(client);
      return new S3TestBucket(client, s3Url, disk, credentials);
    },
    [Symbol.asyncDispose]: async () => clients.forEach((client) => client.destroy()),
  };
}

/** s3rver, with its files in a directory of its own. */
export async function startS3rver(): Promise<BucketServer> {
  const directory = await mkdtemp(join(tmpdir(), 'berth-s3rver-'));
  const [port = 0] = await freePorts(1);
  const url = `http://127.0.0.1:${port}`;
  const daemon = new Daemon(
    's3rver',
    [
      // Its tokens for the next page of a listing are made with DES.
      ...[process.execPath, '--openssl-legacy-provider'],
      ...[serverProgram('s3rver/bin/s3rver.js'), '--no-vhost-buckets'],
      ...['-s', '-d', join(directory, 'buckets'), '-a', '127.0.0.1', '-p', String(port)],
    ],
    {},
    join(directory, 'log'),
  );
  await startListening(daemon, port);
  const server = s3Server(url, { accessKeyId: 'S3RVER', secretAccessKey: 'S3RVER' });
  return {
    newBucket: () => server.newBucket(),
    [Symbol.asyncDispose]: async () => {
      await server[Symbol.asyncDispose]();
      await daemon.stop();
      await rm(directory, { recursive: true });
    },
  };
}
