/* Multipart uploads over HTTP: completions during which a part of the system dies. */
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import anyTest, { type TestFn } from 'ava';
import { createDisk } from '../helpers/disks.ts';
import { ObjectClient, type ObjectReply, s3UrlOf, textsOf } from '../helpers/objects.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';
import { GiB, MiB } from '../../shared/units.ts';
import { isFull } from '../helpers/full.ts';

interface Context {
  stack: Stack;
  s3: ObjectClient;
  rest: ObjectClient;
  disk: string;
}

const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const stack = await Stack.start({ DISK_SIZE_BYTES: String(16 * GiB) });
  const api = await stack.newClient();
  const { id } = await createDisk(api);
  Object.assign(t.context, {
    stack,
    disk: id,
    s3: new ObjectClient(s3UrlOf(stack), api.key),
    rest: new ObjectClient(stack.baseUrl, api.key),
  });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

/** The content of a part, different for each: its number, then a pattern. */
function partOf(number: number, bytes: number): Buffer {
  const part = Buffer.alloc(bytes, `part ${number} `);
  part.writeUInt32LE(number);
  return part;
}

interface Uploaded {
  readonly completeTarget: string;
  readonly document: string;
  /** SHA-256 of the object. */
  readonly digest: string;
}

/** Uploads all parts without completing the object. */
async function upload(
  { s3, disk }: Context,
  key: string,
  { parts, partBytes }: { parts: number; partBytes: number },
): Promise<Uploaded> {
  const target = `/${disk}/${key}`;
  const created = await s3.call('POST', `${target}?uploads=`);
  const [uploadId = ''] = textsOf(created.text, 'UploadId');
  const hash = createHash('sha256');
  let document = '';
  for (let number = 1; number <= parts; number += 1) {
    const query = `?uploadId=${uploadId}&partNumber=${number}`;
    const body = partOf(number, partBytes);
    hash.update(body);
    const { headers } = await s3.call('PUT', `${target}${query}`, { body });
    const etag = headers.get('etag') ?? '';
    document += `<Part><PartNumber>${number}</PartNumber><ETag>${etag}</ETag></Part>`;
  }
  return {
    completeTarget: `${target}?uploadId=${uploadId}`,
    document: `<CompleteMultipartUpload>${document}</CompleteMultipartUpload>`,
    digest: hash.digest('hex'),
  };
}

const complete = (client: ObjectClient, { completeTarget, document }: Uploaded) =>
  client.call('POST', completeTarget, { body: document });

async function residentMiB(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  return Number(/^VmRSS:\s+(\d+) kB$/mu.exec(status)?.[1]) / 1024;
}

/** SHA-256 of an object, read as a stream. */
async function digestOf({ s3, disk }: Context, key: string): Promise<string> {
  const response = await s3.open('GET', `/${disk}/${key}`);
  const hash = createHash('sha256');
  for await (const chunk of response.body ?? []) hash.update(chunk as Uint8Array);
  return hash.digest('hex');
}

/** Kills once the completion is seen to be under way, or after a moment in case it is too fast. */
async function duringCompletion(answer: Promise<unknown>, kill: () => Promise<unknown>) {
  let isOver = false;
  const over = answer.then(
    () => (isOver = true),
    () => (isOver = true),
  );
  await Promise.race([over, sleep(60)]);
  await kill();
  return isOver;
}

const PARTS = { parts: 6, partBytes: 64 * MiB };

test.serial(
  'the agent is killed in mid-completion: no partial object; completing again works',
  async (t) => {
    const { stack, s3, disk } = t.context;
    const uploaded = await upload(t.context, 'killed-agent', PARTS);
    const answer = complete(s3, uploaded).catch(() => undefined);
    await duringCompletion(answer, () => stack.agent.stop('SIGKILL'));
    const first = await answer;
    await stack.startAgent();
    await waitFor('the disk', async () => {
      const { status } = await s3.call('HEAD', `/${disk}`);
      return status === 200;
    });
    const found = await s3.call('HEAD', `/${disk}/killed-agent`);
    if (first?.status === 200) t.is(found.status, 200);
    if (found.status === 200) {
      t.is(found.headers.get('content-length'), String(PARTS.parts * PARTS.partBytes));
    } else {
      t.is(found.status, 404);
      t.is((await complete(s3, uploaded)).status, 200);
    }
    for (let number = 1; number <= PARTS.parts; number += 1) {
      const start = (number - 1) * PARTS.partBytes;
      const range = { range: `bytes=${start}-${start + 15}` };
      const { body } = await s3.get(disk, 'killed-agent', range);
      t.true(body.equals(partOf(number, 16)), `part ${number}`);
    }
  },
);

test.serial(
  'control is killed in mid-completion: the same completion is answered by the agent',
  async (t) => {
    const { stack, s3, rest, disk } = t.context;
    const uploaded = await upload(t.context, 'killed-control', PARTS);
    const answer = complete(rest, uploaded).catch(() => undefined);
    await duringCompletion(answer, () => stack.control.stop('SIGKILL'));
    await answer;
    const again = await waitFor('the completion', async (): Promise<ObjectReply | undefined> => {
      const reply = await complete(s3, uploaded);
      return reply.code === 'OperationAborted' ? undefined : reply;
    });
    t.is(again.status, 200);
    const { headers } = await s3.call('HEAD', `/${disk}/killed-control`);
    t.is(headers.get('content-length'), String(PARTS.parts * PARTS.partBytes));
    await stack.startControl();
  },
);

(isFull ? test.serial : test.serial.skip)(
  'an object of more than 5 GiB comes back as it was, and the agent does not grow with it',
  async (t) => {
    const { stack, s3, disk } = t.context;
    const size = { parts: 84, partBytes: 64 * MiB };
    const before = await residentMiB(stack.agent.pid);
    const uploaded = await upload(t.context, 'huge', size);
    t.is((await complete(s3, uploaded)).status, 200);
    const { headers } = await s3.call('HEAD', `/${disk}/huge`);
    t.is(headers.get('content-length'), String(size.parts * size.partBytes));
    t.is(await digestOf(t.context, 'huge'), uploaded.digest);
    t.true((await residentMiB(stack.agent.pid)) - before < 200);
  },
);
