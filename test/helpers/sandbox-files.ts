/* Calls for the files of a sandbox, and what must hold of them in either runtime. */
import { createHash, randomBytes } from 'node:crypto';
import type { ExecutionContext } from 'ava';
import type { SandboxFile } from '../../shared/schemas/sandbox-file.ts';
import { MiB } from '../../shared/units.ts';
import type { ApiClient, ApiReply } from './api.ts';
import { sandboxPath } from './sandboxes.ts';
import type { Stack } from './stack.ts';
import { waitFor } from './wait.ts';

const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');

/** Calls for the files of one sandbox. */
export class Files {
  readonly #base: string;
  readonly #api: ApiClient;
  readonly #url: string;

  constructor(stack: Stack, api: ApiClient, id: string) {
    this.#api = api;
    this.#base = `${sandboxPath(id)}/files`;
    this.#url = `${stack.baseUrl}${this.#base}`;
  }

  url(path: string, more = ''): string {
    return `${this.#url}?path=${path}${more}`;
  }

  get headers(): Record<string, string> {
    return { authorization: `Bearer ${this.#api.key}` };
  }

  fetch(method: string, path: string, init: RequestInit = {}, more = ''): Promise<Response> {
    const headers = { ...this.headers, ...(init.headers as Record<string, string>) };
    return fetch(this.url(path, more), { ...init, method, headers });
  }

  async put(path: string, body: string | Uint8Array, more = ''): Promise<SandboxFile> {
    const answer = await this.fetch('PUT', path, { body: Buffer.from(body) }, more);
    const said = (await answer.json()) as { data: SandboxFile };
    if (!answer.ok) throw new Error(`PUT ${path}: ${answer.status} ${JSON.stringify(said)}`);
    return said.data;
  }

  async get(path: string): Promise<Buffer> {
    return Buffer.from(await (await this.fetch('GET', path)).arrayBuffer());
  }

  call<T = SandboxFile>(
    method: string,
    operation: string,
    body?: object,
  ): Promise<ApiReply<{ data: T; code: string; nextCursor?: string }>> {
    const path = `${this.#base}${operation}`;
    return this.#api.call<{ data: T; code: string; nextCursor?: string }>(method, path, body);
  }

  /** Events until the watch ends; `seen` grows meanwhile. */
  async watch(path: string): Promise<{ seen: string[]; ended: Promise<void>; leave: () => void }> {
    const left = new AbortController();
    const { headers } = this;
    const url = `${this.#url}/watch?recursive=true&path=${path}`;
    const answer = await fetch(url, { headers, signal: left.signal });
    const seen: string[] = [];
    const read = async (): Promise<void> => {
      let rest = '';
      for await (const chunk of answer.body ?? []) {
        const events = (rest + Buffer.from(chunk as Uint8Array).toString()).split('\n\n');
        rest = events.pop() ?? '';
        for (const event of events) {
          const [, kind, data = '{}'] = /^event: (.*)\ndata: (.*)$/u.exec(event) ?? [];
          if (kind === undefined) continue;
          const { path: of = '', code = '' } = JSON.parse(data) as Record<string, string>;
          seen.push(`${kind} ${of}${code}`);
        }
      }
    };
    const ended = read().catch(() => undefined);
    await waitFor('ready', async () => seen.some((event) => event.startsWith('ready')));
    return { seen, ended, leave: () => left.abort() };
  }
}

/** Checks the promises of both runtimes. */
export async function checkFiles(t: ExecutionContext, files: Files): Promise<void> {
  const content = randomBytes(3 * MiB);
  const made = await files.put('/tmp/new/deep/file', content, '&parents=true&mode=0640&uid=12');
  t.like(made, { path: '/tmp/new/deep/file', type: 'file', size: content.length, mode: '0640' });
  t.like(made, { uid: 12, gid: 0 });
  t.is(sha256(await files.get('/tmp/new/deep/file')), sha256(content));
  const part = await files.fetch('GET', '/tmp/new/deep/file', { headers: { range: 'bytes=-5' } });
  t.is(part.status, 206);
  t.deepEqual(Buffer.from(await part.arrayBuffer()), content.subarray(-5));
  const { body: list } = await files.call<{ entries: SandboxFile[] }>(
    'GET',
    '/list?path=/tmp/new&recursive=true',
  );
  t.deepEqual(
    list.data.entries.map(({ path, type }) => `${type} ${path}`),
    ['directory /tmp/new/deep', 'file /tmp/new/deep/file'],
  );
  const watch = await files.watch('/tmp/new');
  await files.put('/tmp/new/deep/other', 'x');
  await waitFor('the event', async () => watch.seen.includes('created /tmp/new/deep/other'));
  watch.leave();
  await watch.ended;
  t.is((await files.fetch('DELETE', '/tmp/new', {}, '&recursive=true')).status, 204);
  t.is((await files.call('GET', '/stat?path=/tmp/new')).status, 404);
}
