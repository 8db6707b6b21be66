/* Answers of storage that somebody else has, to requests of which an SDK collects the answer. */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type RequestListener, type Server, type ServerResponse } from 'node:http';
import { createServer as createSecureServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { getCACertificates, type SecureContext, setDefaultCACertificates } from 'node:tls';
import test from 'ava';
import { AzureBucket } from '../../../../agent/disks/buckets/azure-bucket.ts';
import { S3Bucket } from '../../../../agent/disks/buckets/s3-bucket.ts';
import { authorityOf } from '../../../../agent/network/egress/authority.ts';
import { LeafCertificates } from '../../../../agent/network/egress/leaf-certificates.ts';
import { ReachableNetworks } from '../../../../shared/reachable-networks.ts';
import type { StoredBucket } from '../../../../shared/schemas/disk-bucket.ts';
import { MiB } from '../../../../shared/units.ts';

const networks = new ReachableNetworks(['127.0.0.0/8']);
const common = { id: 'mount', bucketName: 'bucket', prefix: '', sealedCredentials: '' };

async function listen(server: Server): Promise<number> {
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return (server.address() as AddressInfo).port;
}

async function close(server: Server): Promise<void> {
  server.closeAllConnections();
  server.close();
  await once(server, 'close');
}

async function openBucket(listener: RequestListener) {
  const server = createServer(listener);
  const endpoint = `http://127.0.0.1:${await listen(server)}`;
  const mount: StoredBucket = { ...common, type: 's3-compatible', writeBack: 'sync', endpoint };
  const credentials = { accessKeyId: 'a', secretAccessKey: 'b' };
  const bucket = new S3Bucket(mount, credentials, networks);
  return {
    bucket,
    [Symbol.asyncDispose]: async () => {
      bucket.close();
      await close(server);
    },
  };
}

/**
 * A container of storage that speaks Azure's protocol, and a tenant that knows every application.
 */
async function openContainer(listener: RequestListener) {
  const authority = await authorityOf(randomBytes(32), 'storage');
  setDefaultCACertificates([...getCACertificates('default'), authority.certificate]);
  const context = await new LeafCertificates(authority).contextFor('localhost');
  const SNICallback = (_name: string, done: (error: null, found: SecureContext) => void): void =>
    done(null, context);
  const server = createSecureServer({ SNICallback }, listener);
  const tenant = createServer((_request, response) => {
    response.end(JSON.stringify({ access_token: 'token', expires_in: 3600 }));
  });
  const endpoint = `https://localhost:${await listen(server)}`;
  const azureAuthority = `http://127.0.0.1:${await listen(tenant)}`;
  const mount: StoredBucket = { ...common, type: 'azure-blob', writeBack: 'sync', endpoint };
  const credentials = { tenantId: 'a', clientId: 'b', clientSecret: 'c' };
  const bucket = new AzureBucket(mount, credentials, { networks, azureAuthority });
  return {
    bucket,
    server,
    [Symbol.asyncDispose]: async () => {
      bucket.close();
      await Promise.all([close(server), close(tenant)]);
    },
  };
}

/** Goes on until the other side hangs up. @returns how many bytes were sent */
function sendEndlessly(response: ServerResponse): () => number {
  let sentBytes = 0;
  const piece = Buffer.alloc(MiB, '<Contents>');
  const send = (): void => {
    // The end keeps the test from filling memory where nothing else does.
    if (sentBytes >= 256 * MiB) return void response.destroy();
    sentBytes += piece.length;
    response.write(piece, (error) => error ?? send());
  };
  send();
  return () => sentBytes;
}

const XML = { 'content-type': 'application/xml' };

for (const [storage, open] of [
  ['S3', openBucket],
  ['Azure', openContainer],
] as const) {
  for (const status of [200, 400]) {
    test(`an answer of ${storage} with status ${status} that does not end is given up`, async (t) => {
      const sent: (() => number)[] = [];
      await using opened = await open((_request, response) => {
        response.writeHead(status, XML);
        sent.push(sendEndlessly(response));
      });
      const checked = opened.bucket.check(AbortSignal.timeout(60_000));
      await t.throwsAsync(checked, { name: 'BucketError' });
      t.is(sent.length, 1);
      t.true((sent[0]?.() ?? 0) < 64 * MiB, `${sent[0]?.()} bytes`);
    });
  }
}

test('a part of an Azure blob that does not end is given up', async (t) => {
  const sent: (() => number)[] = [];
  await using opened = await openContainer(({ method }, response) => {
    response.writeHead(method === 'HEAD' ? 200 : 206, {
      ...{ 'content-length': 2 ** 40, 'content-range': `bytes 0-4194303/${2 ** 40}` },
      etag: '"a"',
    });
    if (method === 'HEAD') response.end();
    else sent.push(sendEndlessly(response));
  });
  await t.throwsAsync(opened.bucket.get('key', AbortSignal.timeout(60_000)), {
    name: 'BucketError',
    message: 'the storage sent more than was asked for',
  });
  t.is(sent.length, 1);
  t.true((sent[0]?.() ?? 0) < 64 * MiB, `${sent[0]?.()} bytes`);
});

test('the answers of one connection to Azure may be longer together', async (t) => {
  const empty = '<EnumerationResults><Blobs /><NextMarker /></EnumerationResults>';
  await using opened = await openContainer((_request, response) => {
    response.writeHead(200, XML).end(`${empty}<!--${'x'.repeat(6 * MiB)}-->`);
  });
  let connections = 0;
  opened.server.on('secureConnection', () => {
    connections += 1;
  });
  for (let count = 0; count < 4; count += 1) {
    await opened.bucket.check(AbortSignal.timeout(60_000));
  }
  t.is(connections, 1);
});

/** Lists a bucket whose server gives this answer. */
async function listed(answer: string): Promise<number> {
  await using opened = await openBucket((_request, response) => {
    response.writeHead(200, XML).end(answer);
  });
  let count = 0;
  for await (const page of opened.bucket.list(AbortSignal.timeout(60_000))) count += page.length;
  return count;
}

const listOf = (contents: string): string =>
  `<ListBucketResult><IsTruncated>false</IsTruncated>${contents}</ListBucketResult>`;

test('a page of a listing with the longest keys is read', async (t) => {
  const key = '%C3%A9'.repeat(512);
  const more = '<Size>1</Size><ETag>&quot;0123456789abcdef0123456789abcdef&quot;</ETag>';
  const object = `<Contents><Key>${key}</Key>${more}</Contents>`;
  t.is(await listed(listOf(object.repeat(1_000))), 1_000);
});

test('a longer answer is not given to the parser', async (t) => {
  await t.throwsAsync(listed(listOf(`<!--${'x'.repeat(5 * MiB)}-->`)), {
    name: 'BucketError',
    message: 'the storage answered with an error (UnreadableAnswer)',
  });
});

test('an answer with several document types is not either: each costs it a copy of the text', async (t) => {
  t.is(await listed(`<!DOCTYPE x>${listOf('')}`), 0);
  await t.throwsAsync(listed(`${'<!DocType x>'.repeat(1_000)}${listOf('')}`), {
    name: 'BucketError',
    message: 'the storage answered with an error (UnreadableAnswer)',
  });
});

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
    answer: `<ListBucketResult><IsTruncated>true</IsTruncated>${CONTINUED}</ListBucketResult>`,
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
