import { MiB } from '../../shared/units.ts';
import type { Random } from './random.ts';
import type { ApiClient } from './api.ts';
import { exec } from './disks.ts';
import {
  checkListing,
  crcOf,
  Disagreement,
  type Expected,
  md5Of,
  ModelObject,
} from './object-model.ts';
import { escapeKey, type ObjectClient, type ObjectReply, textsOf } from './objects.ts';

const ACTIONS = {
  put: 6,
  append: 3,
  copy: 3,
  putLarge: 1,
  multipart: 2,
  multipartLarge: 1,
  delete: 3,
  putIfAbsent: 2,
  putIfMatch: 3,
  deleteIfMatch: 2,
  command: 2,
  read: 3,
  list: 1,
} as const;
type Action = keyof typeof ACTIONS;

const KEYS = ['a', 'b', 'folder/c', 'folder/d ü'];
const LARGE_BYTES = 5 * MiB;
const NO_ETAG = '00000000000000000000000000000000';
const NOT_DONE = new Set([404, 409, 412]);

/** An answer that tells nothing about whether the request had an effect. */
class Unanswered extends Error {}

/** A client that changes its own objects at random, and expects them to stay as it left them. */
export class ObjectActor {
  readonly #options: ObjectActorOptions;
  readonly #random: Random;
  #objects: ModelObject[] = [];
  #prefix = '';
  #steps: string[] = [];

  constructor(options: ObjectActorOptions) {
    this.#options = options;
    this.#random = options.random;
  }

  /** Some actions on new keys, then a comparison of all of them. @throws Disagreement */
  async runSequence(name: string): Promise<void> {
    this.#prefix = `${name}/`;
    this.#objects = KEYS.map((key) => new ModelObject(`${this.#prefix}${key}`));
    this.#steps = [];
    try {
      for (let count = this.#random.integer(3, 8); count > 0; count -= 1) await this.#act();
      for (const object of this.#objects) await this.#read(object);
      await this.#settled(() => this.#list());
      await this.#settled(() => this.#deleteAll());
    } catch (error) {
      if (!(error instanceof Disagreement)) throw error;
      throw new Disagreement(`${error.message}, after ${this.#steps.join('; ')}`);
    }
  }

  async #deleteAll(): Promise<void> {
    const { client, disk } = this.#options;
    const objects = this.#objects.map(({ key }) => `<Object><Key>${key}</Key></Object>`);
    const body = `<Delete>${objects.join('')}</Delete>`;
    const { status, text } = await client.call('POST', `/${disk}?delete`, { body });
    if (status !== 200 || text.includes('<Error>')) throw new Error(`DeleteObjects: ${text}`);
    for (const object of this.#objects) object.becomes(undefined);
    await checkListing(client, disk, this.#prefix, this.#objects);
  }

  async #act(): Promise<void> {
    const action = this.#random.weighted(ACTIONS);
    const object = this.#random.pick(this.#objects);
    const other = this.#random.pick(this.#objects);
    for (const each of [object, other]) if (!each.isKnown) await this.#read(each);
    this.#steps.push(`${action} ${object.key.slice(this.#prefix.length)}`);
    try {
      await this.#actions[action](object, other);
    } catch (error) {
      if (!(error instanceof Unanswered)) throw error;
      this.#steps.push('(unanswered)');
      await this.#options.recovered();
    }
  }

  readonly #actions: Readonly<
    Record<Action, (object: ModelObject, other: ModelObject) => Promise<unknown>>
  > = {
    put: (object) => this.#put(object, {}),
    append: async (object) => {
      const body = this.#content();
      const { expected } = object;
      const content = `${expected?.content ?? ''}${body}`;
      const after = { content, etag: md5Of(content), color: expected?.color };
      await this.#change(object, after, 'PUT', '?append=true', { body });
    },
    copy: async (object, other) => {
      const { expected } = other;
      const headers = {
        'x-amz-copy-source': escapeKey(`${this.#options.disk}/${other.key}`),
        'x-amz-checksum-algorithm': 'CRC32',
        ...(object === other ? { 'x-amz-metadata-directive': 'REPLACE' } : {}),
      };
      const { content = '' } = expected ?? {};
      const color = object === other ? undefined : expected?.color;
      const copied = { content, color, etag: md5Of(content), checksum: crcOf(content) };
      const after = expected === undefined ? object.expected : copied;
      const { status } = await this.#change(object, after, 'PUT', '', { headers });
      this.#assertStatus(status, expected === undefined ? 404 : 200, 'copy');
    },
    // Large enough to be killed in the middle.
    putLarge: (object) => this.#put(object, {}, true, this.#largeContent()),
    multipart: (object) => this.#multipart(object, [this.#content()], 'COMPOSITE'),
    multipartLarge: (object) =>
      this.#multipart(object, [this.#largeContent(), this.#content()], 'FULL_OBJECT'),
    delete: (object) => this.#change(object, undefined, 'DELETE', ''),
    putIfAbsent: async (object) => {
      const isAbsent = object.expected === undefined;
      const { status } = await this.#put(object, { 'if-none-match': '*' }, isAbsent);
      this.#assertStatus(status, isAbsent ? 200 : 412, 'put if absent');
    },
    putIfMatch: async (object) => {
      const etag = await this.#read(object);
      const isRight = this.#random.integer(0, 1) === 1 && object.expected !== undefined;
      const header = { 'if-match': `"${isRight ? etag : NO_ETAG}"` };
      const { status } = await this.#put(object, header, isRight);
      this.#assertStatus(status, isRight ? 200 : object.expected === undefined ? 404 : 412, 'put');
    },
    deleteIfMatch: async (object) => {
      const etag = await this.#read(object);
      const isRight = this.#random.integer(0, 1) === 1;
      const headers = { 'if-match': `"${isRight ? etag : NO_ETAG}"` };
      const before = object.expected;
      const after = isRight ? undefined : before;
      const { status } = await this.#change(object, after, 'DELETE', '', { headers });
      this.#assertStatus(status, isRight || before === undefined ? 204 : 412, 'delete');
    },
    command: (object) => this.#command(object),
    read: (object) => this.#read(object),
    list: () => this.#list(),
  };

  #content(): string {
    const length = this.#random.integer(0, 5) === 0 ? 0 : this.#random.integer(1, 40);
    return `${this.#random.integer(0, 1e9)} `.repeat(length);
  }

  #largeContent(): string {
    return `${this.#random.integer(1e8, 1e9)} large`.padEnd(LARGE_BYTES, '-');
  }

  #assertStatus(status: number, wanted: number, what: string): void {
    if (status !== wanted) throw new Disagreement(`${what} answers ${status}, not ${wanted}`);
  }

  #put(
    object: ModelObject,
    headers: Record<string, string>,
    isDone = true,
    content = this.#content(),
  ): Promise<ObjectReply> {
    const color = this.#random.integer(0, 1) === 0 ? undefined : 'red';
    const checksum = this.#random.integer(0, 1) === 0 ? undefined : crcOf(content);
    const after = { content, etag: md5Of(content), color, checksum };
    return this.#change(object, isDone ? after : object.expected, 'PUT', '', {
      body: content,
      headers: {
        ...headers,
        ...(color === undefined ? {} : { 'x-amz-meta-color': color }),
        ...(checksum === undefined ? {} : { 'x-amz-checksum-crc32': checksum }),
      },
    });
  }

  async #multipart(
    object: ModelObject,
    contents: readonly string[],
    type: 'COMPOSITE' | 'FULL_OBJECT',
  ): Promise<void> {
    const headers = { 'x-amz-checksum-algorithm': 'CRC32', 'x-amz-checksum-type': type };
    const created = await this.#call(object, 'POST', '?uploads', { headers });
    const [id = ''] = textsOf(created.text, 'UploadId');
    let parts = '';
    for (const [index, body] of contents.entries()) {
      // Numbers need not be without gaps.
      const number = index * 2 + 3;
      const query = `?uploadId=${id}&partNumber=${number}`;
      const part = await this.#call(object, 'PUT', query, { body });
      this.#assertStatus(part.status, 200, 'upload of a part');
      parts += `<Part><PartNumber>${number}</PartNumber><ETag>${md5Of(body)}</ETag></Part>`;
    }
    const body = `<CompleteMultipartUpload>${parts}</CompleteMultipartUpload>`;
    const content = contents.join('');
    const md5s = Buffer.from(contents.map(md5Of).join(''), 'hex');
    const crcs = Buffer.concat(contents.map((each) => Buffer.from(crcOf(each), 'base64')));
    const after = {
      content,
      etag: `${md5Of(md5s)}-${contents.length}`,
      checksum: type === 'FULL_OBJECT' ? crcOf(content) : `${crcOf(crcs)}-${contents.length}`,
    };
    await this.#change(object, after, 'POST', `?uploadId=${id}`, { body });
  }

  async #command(object: ModelObject): Promise<void> {
    const text = `command ${this.#random.integer(0, 1e9)}`;
    const { expected } = object;
    const path = `'${object.key}'`;
    const [command, after] = this.#random.pick([
      [`rm -f ${path}`, undefined],
      [`mv -f ${path} moved`, undefined],
      [`echo ${text} > ${path}`, { content: `${text}\n`, etag: undefined }],
      [
        `echo ${text} >> ${path}`,
        { content: `${expected?.content ?? ''}${text}\n`, etag: undefined },
      ],
    ] as const);
    try {
      const folder = `mkdir -p "$(dirname ${path})"`;
      await exec(this.#options.api, this.#options.disk, `${folder} && ${command}`);
      object.becomes(after);
    } catch {
      // The shell opens the file before it writes: killed in between, it leaves an empty one.
      const isEmptied = command.includes(' > ') || expected === undefined;
      if (after !== undefined && isEmptied) object.mayBecome({ content: '', etag: undefined });
      object.mayBecome(after);
      throw new Unanswered('the command');
    }
  }

  /** Sends a request that makes the object this, unless it answers that it did nothing. */
  async #change(
    object: ModelObject,
    after: Expected,
    method: string,
    query: string,
    request: { body?: string; headers?: Record<string, string> } = {},
  ): Promise<ObjectReply> {
    let reply: ObjectReply;
    try {
      reply = await this.#call(object, method, query, request);
    } catch (error) {
      object.mayBecome(after);
      throw error;
    }
    if (reply.status < 300) object.becomes(after);
    else if (!NOT_DONE.has(reply.status)) {
      throw new Disagreement(`${method} ${query} answers ${reply.status} ${reply.code ?? ''}`);
    }
    return reply;
  }

  /** @throws Unanswered when it is not known what became of the request */
  async #call(
    { key }: ModelObject,
    method: string,
    query: string,
    request: { body?: string; headers?: Record<string, string> },
  ): Promise<ObjectReply> {
    const { client, disk } = this.#options;
    let reply: ObjectReply;
    try {
      reply = await client.call(method, `/${disk}/${escapeKey(key)}${query}`, request);
    } catch {
      throw new Unanswered(method);
    }
    // 408: its time was up, perhaps after it had done its work.
    if (reply.status === 503 || reply.status === 408) throw new Unanswered(method);
    return reply;
  }

  #read(object: ModelObject): Promise<string> {
    return this.#settled(() => object.check(this.#options.client, this.#options.disk));
  }

  /** Repeats a read until the system answers. */
  async #settled<T>(read: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        return await read();
      } catch (error) {
        if (error instanceof Disagreement) throw error;
        await this.#options.recovered();
      }
    }
  }

  async #list(): Promise<void> {
    for (const object of this.#objects) if (!object.isKnown) await this.#read(object);
    const { client, disk } = this.#options;
    await this.#settled(() => checkListing(client, disk, this.#prefix, this.#objects));
  }
}

export interface ObjectActorOptions {
  readonly client: ObjectClient;
  readonly api: ApiClient;
  readonly disk: string;
  readonly random: Random;
  /** Settles when the system answers again, and nothing that failed is still at work. */
  readonly recovered: () => Promise<void>;
}
