/* Answers of storage that somebody else has, to requests of which the SDK collects the answer. */
import { once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import test from 'ava';
import { S3Bucket } from '../../../agent/buckets/s3-bucket.ts';
import { ReachableNetworks } from '../../../shared/reachable-networks.ts';
import type { StoredMount } from '../../../shared/schemas/disk-mount.ts';
import { MiB } from '../../../shared/units.ts';

async function openBucket(listener: RequestListener) {
  const server = createServer(listener).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const mount: StoredMount = {
    ...{ id: 'mount', bucketName: 'bucket', prefix: '', sealedCredentials: '' },
    type: 's3-compatible',
    writeBack: 'sync',
    endpoint: `http://127.0.0.1:${port}`,
  };
  const credentials = { accessKeyId: 'a', secretAccessKey: 'b' };
  const bucket = new S3Bucket(mount, credentials, new ReachableNetworks(['127.0.0.0/8']));
  return {
    bucket,
    [Symbol.asyncDispose]: async () => {
      bucket.close();
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

for (const status of [200, 400]) {
  test(`an answer with status ${status} that does not end is given up`, async (t) => {
    let sentBytes = 0;
    await using opened = await openBucket((_request, response) => {
      response.writeHead(status, { 'content-type': 'application/xml' });
      const piece = Buffer.alloc(MiB, '<Contents>');
      const send = (): void => {
        // The end keeps the test from filling memory where nothing else does.
        if (sentBytes >= 256 * MiB) return void response.end();
        sentBytes += piece.length;
        response.write(piece, (error) => error ?? send());
      };
      send();
    });
    await t.throwsAsync(opened.bucket.check(AbortSignal.timeout(60_000)), { name: 'BucketError' });
    t.true(sentBytes < 128 * MiB, `${sentBytes} bytes`);
  });
}

test('an object may be longer than other answers', async (t) => {
  const piece = Buffer.alloc(MiB, 'x');
  await using opened = await openBucket((_request, response) => {
    response.writeHead(200, { etag: '"a"', 'content-length': 20 * MiB });
    for (let count = 0; count < 20; count += 1) response.write(piece);
    response.end();
  });
  const { body } = await opened.bucket.get('key', AbortSignal.timeout(60_000));
  let bytes = 0;
  for await (const chunk of body as AsyncIterable<Buffer>) bytes += chunk.length;
  t.is(bytes, 20 * MiB);
});

const CONTINUED = '<NextContinuationToken>t</NextContinuationToken>';
const LISTED = '<Contents><Key>a</Key><Size>1</Size><ETag>"e"</ETag></Contents>';

for (const { answer, message } of [
  {
    answer: `<ListBucketResult><IsTruncated>true</IsTruncated>${LISTED}</ListBucketResult>`,
    message: /does not say how/u,
  },
  {
    answer: `<ListBucketResult><IsTruncated>true</IsTruncated>${LISTED}${CONTINUED}</ListBucketResult>`,
    message: /continues its listing where it was before/u,
  },
  { answer: `<ListBucketResult>${LISTED}</ListBucketResult>`, message: /does not say whether/u },
  { answer: '<html><body>Sign in</body></html>', message: /does not say whether/u },
]) {
  test(`an answer that may be less than the listing is not taken for it: ${answer}`, async (t) => {
    await using opened = await openBucket((_request, response) => {
      response.writeHead(200, { 'content-type': 'application/xml' });
      response.end(answer);
    });
    const listAll = async (): Promise<void> => {
      for await (const page of opened.bucket.list(AbortSignal.timeout(60_000))) {
        t.true(page.length < 2);
      }
    };
    await t.throwsAsync(listAll(), { name: 'BucketError', message });
  });
}

test('an error code that is a name of JavaScript is an unknown one', async (t) => {
  await using opened = await openBucket((_request, response) => {
    response.writeHead(400, { 'content-type': 'application/xml' });
    response.end('<Error><Code>constructor</Code><Message>no</Message></Error>');
  });
  await t.throwsAsync(opened.bucket.check(AbortSignal.timeout(60_000)), {
    name: 'BucketError',
    message: 'the storage answered with an error (400 constructor)',
  });
});
