/* Storage that works for long before it answers, and storage that never does. */
import { once } from 'node:events';
import { Agent as HttpAgent, createServer } from 'node:http';
import { Agent as HttpsAgent } from 'node:https';
import type { AddressInfo } from 'node:net';
import {
  CompleteMultipartUploadCommand,
  CopyObjectCommand,
  GetObjectCommand,
  PutObjectCommand,
  S3Client,
  UploadPartCommand,
} from '@aws-sdk/client-s3';
import test from 'ava';
import { S3Requests } from '../../../../agent/disks/buckets/s3-requests.ts';

const SILENCE_MS = 300;

/** A client of a server that answers the requests of `methods` after `workMs`, and no others. */
async function openClient(methods: readonly string[], workMs: number) {
  const server = createServer(({ method = '' }, response) => {
    if (!methods.includes(method)) return;
    setTimeout(() => response.end('<Result><ETag>"a"</ETag></Result>'), workMs);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const agents = { httpAgent: new HttpAgent(), httpsAgent: new HttpsAgent() };
  const client = new S3Client({
    endpoint: `http://127.0.0.1:${port}`,
    region: 'us-east-1',
    forcePathStyle: true,
    maxAttempts: 1,
    credentials: { accessKeyId: 'a', secretAccessKey: 'b' },
    requestHandler: new S3Requests(agents, { silenceMs: SILENCE_MS, workMs: 60_000 }),
  });
  return {
    client,
    async [Symbol.asyncDispose]() {
      client.destroy();
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

const OBJECT = { Bucket: 'bucket', Key: 'key' };

test('the end of an upload in parts, and a copy, are waited for', async (t) => {
  await using opened = await openClient(['POST', 'PUT'], 5 * SILENCE_MS);
  const upload = { ...OBJECT, UploadId: 'upload', MultipartUpload: { Parts: [] } };
  const copy = { ...OBJECT, CopySource: 'bucket/other' };
  const replies = await Promise.all([
    opened.client.send(new CompleteMultipartUploadCommand(upload)),
    opened.client.send(new CopyObjectCommand(copy)),
  ]);
  t.deepEqual(
    replies.map(({ $metadata }) => $metadata.httpStatusCode),
    [200, 200],
  );
});

test('any other request that is not answered is given up', async (t) => {
  await using opened = await openClient([], 0);
  const { client } = opened;
  const part = { ...OBJECT, UploadId: 'upload', PartNumber: 1, Body: 'x' };
  await Promise.all(
    [
      () => client.send(new GetObjectCommand(OBJECT)),
      () => client.send(new PutObjectCommand({ ...OBJECT, Body: 'x' })),
      () => client.send(new UploadPartCommand(part)),
    ].map((send) => t.throwsAsync(send, { name: 'TimeoutError' })),
  );
});
