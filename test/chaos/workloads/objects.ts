import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { escapeKey, ObjectClient, type ObjectReply, textsOf } from '../../helpers/objects.ts';
import { waitFor } from '../../helpers/wait.ts';
import { HANGS_AFTER_MS } from '../attempt.ts';
import type { Workload, WorkloadContext } from '../workload.ts';
import { KiB } from '../../../shared/units.ts';

const PART_BYTES = 5 * KiB * KiB;
const SIZES = [100, 4 * KiB, 100 * KiB, 1_000_003] as const;
const PAUSE_MS = { min: 20, max: 300 } as const;
const RECOVERS_WITHIN_MS = 90_000;
const ABSENT = 'absent';

/** A content is derived from its name, which is its first line and its end. */
function contentOf(name: string): Buffer {
  const size = Number(name.split('#')[2]);
  const pattern = createHash('sha512').update(name).digest();
  const content = Buffer.alloc(Math.max(size, 3 * name.length), pattern);
  content.write(`${name}\n`);
  content.write(name, content.length - name.length);
  return content;
}

/** @returns the name of the content; undefined when the bytes are not exactly one whole content */
function nameOf(content: Buffer): string | undefined {
  const name = content.subarray(0, Math.max(0, content.indexOf('\n'))).toString('latin1');
  return /^[\w.]+#\d+#\d+$/u.test(name) && contentOf(name).equals(content) ? name : undefined;
}

/** An object of one writer: the content that it has, or those that it may have. */
interface Register {
  readonly diskId: string;
  readonly key: string;
  /** Names of possible contents, or absent. Several after a change with an unknown outcome. */
  candidates: Set<string>;
}

/**
 * Objects that are put, put together from parts, copied, deleted and read, at every address that
 * serves them. Each key has one writer, so that what it holds is known.
 */
export class Objects implements Workload {
  readonly #context: WorkloadContext;
  readonly #clients: readonly ObjectClient[];
  readonly #registers: readonly Register[];
  #count = 0;

  /** @param prefix a prefix of keys that no other writer uses */
  constructor(
    context: WorkloadContext,
    urls: readonly string[],
    { diskIds, prefix, keys }: { diskIds: readonly string[]; prefix: string; keys: number },
  ) {
    this.#context = context;
    this.#clients = urls.map((url) => new ObjectClient(url, context.api.key));
    this.#registers = diskIds.flatMap((diskId) =>
      Array.from({ length: keys }, (_, index) => ({
        diskId,
        key: `${prefix}/${index}`,
        candidates: new Set([ABSENT]),
      })),
    );
  }

  async run(over: AbortSignal): Promise<void> {
    const { random } = this.#context;
    while (!over.aborted) {
      const register = random.pick(this.#registers);
      const way = random.weighted({ put: 8, read: 8, copy: 3, remove: 2, parts: 2 });
      if (way === 'put') await this.#put(register);
      else if (way === 'read') await this.#read(register);
      else if (way === 'copy') await this.#copy(register);
      else if (way === 'remove') await this.#remove(register);
      else await this.#putInParts(register);
      await sleep(random.integer(PAUSE_MS.min, PAUSE_MS.max));
    }
  }

  async check(): Promise<void> {
    for (const register of this.#registers) {
      try {
        await waitFor(`object ${register.key}`, () => this.#read(register), RECOVERS_WITHIN_MS);
      } catch {
        this.#context.findings.report(`${register.key} of ${register.diskId} cannot be read`);
      }
    }
  }

  /** @returns undefined when the connection broke */
  async #call(
    method: string,
    { diskId, key }: Register,
    {
      query = '',
      ...request
    }: { query?: string; headers?: Record<string, string>; body?: Buffer | string } = {},
  ): Promise<ObjectReply | undefined> {
    const { findings, random } = this.#context;
    const client = random.pick(this.#clients);
    const target = `/${diskId}/${escapeKey(key)}${query}`;
    const late = sleep(HANGS_AFTER_MS, 'late' as const, { ref: false });
    const reply = await Promise.race([
      client.call(method, target, request).catch(() => undefined),
      late,
    ]);
    if (reply === 'late') {
      findings.report(`${method} ${target} had no answer within ${HANGS_AFTER_MS} ms`);
      return undefined;
    }
    if (reply === undefined) {
      findings.count('objects: cut');
      return undefined;
    }
    if (reply.status >= 400) {
      findings.count(`objects: answer ${reply.status} ${reply.code ?? ''}`);
      const isExplained =
        reply.status === 503 ||
        reply.status === 504 ||
        (reply.status === 500 && findings.explainsInternalErrors) ||
        ['NoSuchKey', 'NoSuchUpload', 'OperationAborted'].includes(reply.code ?? '') ||
        (method === 'HEAD' && reply.status === 404);
      if (!isExplained) {
        findings.report(`${method} ${target} answered ${reply.status} ${reply.text.slice(0, 300)}`);
      }
    }
    return reply;
  }

  /** Changes an object by one request. All candidates remain until one is confirmed. */
  async #change(
    register: Register,
    to: string,
    send: () => Promise<ObjectReply | undefined>,
  ): Promise<void> {
    register.candidates.add(to);
    const reply = await send();
    if (reply === undefined || reply.status >= 300) return;
    register.candidates = new Set([to]);
    this.#context.findings.count('acknowledged object changes');
  }

  #newName(size: number): string {
    this.#count += 1;
    return `${this.#registers[0]?.key.replace('/', '.')}#${this.#count}#${size}`;
  }

  async #put(register: Register): Promise<void> {
    const name = this.#newName(this.#context.random.pick(SIZES));
    await this.#change(register, name, () =>
      this.#call('PUT', register, { body: contentOf(name) }),
    );
  }

  async #remove(register: Register): Promise<void> {
    await this.#change(register, ABSENT, () => this.#call('DELETE', register));
  }

  async #copy(register: Register): Promise<void> {
    const sources = this.#registers.filter(
      ({ diskId, key, candidates }) =>
        diskId === register.diskId &&
        key !== register.key &&
        candidates.size === 1 &&
        !candidates.has(ABSENT),
    );
    if (sources.length === 0) return;
    const source = this.#context.random.pick(sources);
    const [name = ''] = source.candidates;
    const headers = { 'x-amz-copy-source': `/${source.diskId}/${escapeKey(source.key)}` };
    await this.#change(register, name, async () => {
      const reply = await this.#call('PUT', register, { headers });
      if (reply?.status === 404) {
        this.#context.findings.report(`${source.key} of ${source.diskId} is gone: ${name}`);
      }
      // A copy can fail after its answer has begun, so only its body says whether it succeeded.
      return reply !== undefined && reply.text.includes('CopyObjectResult') ? reply : undefined;
    });
  }

  async #putInParts(register: Register): Promise<void> {
    const name = this.#newName(PART_BYTES + 70_000);
    const content = contentOf(name);
    const begun = await this.#call('POST', register, { query: '?uploads=' });
    const [uploadId] = textsOf(begun?.text ?? '', 'UploadId');
    if (uploadId === undefined) return;
    const parts = [content.subarray(0, PART_BYTES), content.subarray(PART_BYTES)];
    let list = '';
    for (const [index, body] of parts.entries()) {
      const query = `?uploadId=${uploadId}&partNumber=${index + 1}`;
      const sent = await this.#call('PUT', register, { query, body });
      if (sent?.status !== 200) {
        await this.#call('DELETE', register, { query: `?uploadId=${uploadId}` });
        return;
      }
      const etag = sent.headers.get('etag') ?? '';
      list += `<Part><PartNumber>${index + 1}</PartNumber><ETag>${etag}</ETag></Part>`;
    }
    const body = `<CompleteMultipartUpload>${list}</CompleteMultipartUpload>`;
    await this.#change(register, name, async () => {
      const reply = await this.#call('POST', register, { query: `?uploadId=${uploadId}`, body });
      return reply?.text.includes('CompleteMultipartUploadResult') === true ? reply : undefined;
    });
  }

  /** @returns whether it could be read */
  async #read(register: Register): Promise<boolean> {
    const { findings } = this.#context;
    const reply = await this.#call('GET', register);
    if (reply === undefined) return false;
    const isAbsent = reply.status === 404 && reply.code === 'NoSuchKey';
    if (reply.status !== 200 && !isAbsent) return false;
    const { key, diskId, candidates } = register;
    const found = isAbsent ? ABSENT : nameOf(reply.body);
    findings.count('objects read');
    if (found === undefined) {
      const start = JSON.stringify(reply.body.subarray(0, 60).toString('latin1'));
      findings.report(`${key} of ${diskId} is torn: ${reply.body.length} bytes: ${start}`);
    } else if (!candidates.has(found)) {
      findings.count('losses');
      findings.report(`${key} of ${diskId} is ${found}, not ${[...candidates].join(' or ')}`);
      register.candidates = new Set([found]); // Once is enough.
    }
    return true;
  }
}
