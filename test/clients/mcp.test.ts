/*
 * The tools for language models, used by the protocol's own client: at /mcp of control, and by the
 * command `berth mcp`.
 */
import assert from 'node:assert';
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { once } from 'node:events';
import { type IncomingMessage, request as httpRequest } from 'node:http';
import { text as textOfStream } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { mendMedian } from '../../examples/mcp-agent.ts';
import type { ApiClient } from '../helpers/api.ts';
import { Cli } from '../helpers/cli.ts';
import { isFull } from '../helpers/full.ts';
import { containerSettings, outputOf } from '../helpers/sandboxes.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';
import type { ActivityEvent } from '../../shared/schemas/activity.ts';
import { MiB } from '../../shared/units.ts';

const ALLOWED = 'https://app.example.com';
const OUTPUT_BYTES = (isFull ? 100 : 24) * MiB;

interface Result {
  readonly isError?: boolean;
  readonly content: readonly { readonly type: string; readonly text: string }[];
  readonly structuredContent?: Readonly<Record<string, unknown>>;
}

async function connect(baseUrl: string, apiKey: string): Promise<Client> {
  const client = new Client({ name: 'test', version: '1' });
  const transport = new StreamableHTTPClientTransport(new URL('/mcp', baseUrl), {
    requestInit: { headers: { authorization: `Bearer ${apiKey}` } },
  });
  await client.connect(transport);
  return client;
}

const use = async (
  client: Client,
  name: string,
  input: Readonly<Record<string, unknown>> = {},
): Promise<Result> => (await client.callTool({ name, arguments: input })) as unknown as Result;

/** The data of a tool's answer that is no failure. */
async function data<T = Record<string, unknown>>(
  client: Client,
  name: string,
  input: Readonly<Record<string, unknown>> = {},
): Promise<T> {
  const { isError, content, structuredContent } = await use(client, name, input);
  assert(isError !== true, content[0]?.text);
  return structuredContent as T;
}

const failure = async (
  client: Client,
  name: string,
  input: Readonly<Record<string, unknown>>,
): Promise<string> => {
  const { isError, content } = await use(client, name, input);
  assert(isError === true, `${name} did not fail`);
  return content[0]?.text ?? '';
};

const test = stackTest(
  { ...containerSettings(), ALLOWED_ORIGINS: ALLOWED },
  async ({ stack, api }) => {
    const client = await connect(stack.baseUrl, api.key);
    const { sandbox_id: sandbox } = await data<{ sandbox_id: string }>(client, 'sandbox_create', {
      name: 'shared',
      mem_size_mib: 256,
    });
    return { client, sandbox };
  },
);

/** A request as clients send it, but for what is given. */
const post = (
  url: string,
  apiKey: string,
  body = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'ping' }),
  headers: Readonly<Record<string, string>> = {},
): Promise<Response> =>
  fetch(new URL('/mcp', url), {
    method: 'POST',
    body,
    headers: {
      authorization: `Bearer ${apiKey}`,
      accept: 'application/json, text/event-stream',
      'content-type': 'application/json',
      ...headers,
    },
  });

/** Whether a command with the mark runs in the sandbox. */
async function isRunning(api: ApiClient, sandbox: string, mark: string): Promise<boolean> {
  const command = `grep -lze '^[9]${mark}$' /proc/[0-9]*/cmdline; true`;
  return (await outputOf(api, sandbox, command)) !== '';
}

const newMark = (): string => String(1000 + (randomBytes(2).readUInt16BE() % 9000));

test('offers tools with schemas, and says which of them destroy', async (t) => {
  const { tools } = await t.context.client.listTools();
  t.true(tools.length >= 25);
  for (const { name, description = '', inputSchema, outputSchema, annotations } of tools) {
    t.true(description.length > 20, name);
    t.is(inputSchema.type, 'object', name);
    t.is(outputSchema?.type, 'object', name);
    t.is(typeof annotations?.readOnlyHint, 'boolean', name);
    t.is(typeof annotations?.destructiveHint, 'boolean', name);
  }
  const hints = new Map(tools.map(({ name, annotations }) => [name, annotations]));
  t.true(hints.get('sandbox_delete')?.destructiveHint);
  t.true(hints.get('sandbox_get')?.readOnlyHint);
  t.false(hints.get('sandbox_fork')?.destructiveHint);
});

test('an agent writes code, runs it, tries two ways in forks, and keeps one', async (t) => {
  const kept = await mendMedian(t.context.client);
  t.is(kept.way, 'statistics');
  t.deepEqual(kept.passed, { sorted: false, statistics: true });
});

test('runs commands with input, environment and directory', async (t) => {
  const { client, sandbox } = t.context;
  const run = await data(client, 'sandbox_run', {
    sandbox: 'shared',
    command: 'pwd; echo "$MARK"; cat; echo no >&2; exit 3',
    cwd: '/tmp',
    env: { MARK: 'here' },
    stdin: 'typed',
  });
  t.like(run, { exit_code: 3, stdout: '/tmp\nhere\ntyped', stderr: 'no\n', status: 'failed' });
  const late = await data(client, 'sandbox_run', {
    sandbox,
    command: 'sleep 60',
    timeout_seconds: 1,
  });
  t.is(late['status'], 'timed_out');
});

test('keeps the beginning and the end of long output', async (t) => {
  const { client, sandbox } = t.context;
  const command = `echo first; head -c ${OUTPUT_BYTES} /dev/zero | tr '\\0' x; echo; echo last`;
  const { stdout, stdout_bytes } = await data<{ stdout: string; stdout_bytes: number }>(
    client,
    'sandbox_run',
    { sandbox, command },
  );
  t.is(stdout_bytes, OUTPUT_BYTES + 'first\n\nlast\n'.length);
  t.true(stdout.length < 64 * 1024);
  t.true(stdout.startsWith('first\nxxx'));
  t.true(stdout.endsWith('xxx\nlast\n'));
  t.regex(stdout, /\[… [\d,]+ of [\d,]+ bytes left out …\]/u);
});

test('says of output that is no text what it is', async (t) => {
  const { client, sandbox } = t.context;
  const command = 'head -c 65536 /dev/urandom; head -c 1 /dev/zero; printf é >&2';
  const { stdout, stderr } = await data(client, 'sandbox_run', { sandbox, command });
  t.regex(String(stdout), /^\[65,537 bytes that are not text, beginning with [0-9a-f]{32};/u);
  t.is(stderr, 'é');
});

test('reads, writes, lists, moves and deletes files', async (t) => {
  const { client, sandbox } = t.context;
  const path = '/data/a/ünï code.txt';
  await data(client, 'file_write', { sandbox, path, content: 'é'.repeat(100), mode: '0600' });
  t.like(await data(client, 'file_stat', { sandbox, path }), { size: 200, mode: '0600' });
  const first = await data(client, 'file_read', { sandbox, path, length: 33 });
  t.like(first, { content: 'é'.repeat(16), next_offset: 32, is_end: false, size: 200 });
  const rest = await data(client, 'file_read', { sandbox, path, offset: 32 });
  t.like(rest, { content: 'é'.repeat(84), next_offset: 200, is_end: true });

  const bytes = randomBytes(1000).toString('base64');
  const binary = { sandbox, path: '/data/b', encoding: 'base64' };
  await data(client, 'file_write', { ...binary, content: bytes });
  t.is((await data(client, 'file_read', binary))['content'], bytes);
  t.regex(await failure(client, 'file_read', { sandbox, path: '/data/b' }), /encoding base64/u);

  await data(client, 'file_move', { sandbox, from: '/data/b', to: '/data/c' });
  const { files } = await data<{ files: { path: string }[] }>(client, 'file_list', {
    sandbox,
    path: '/data',
    recursive: true,
  });
  t.deepEqual(
    files.map((file) => file.path),
    ['/data/a', path, '/data/c'],
  );
  t.regex(await failure(client, 'file_delete', { sandbox, path: '/data' }), /recursive/u);
  await data(client, 'file_delete', { sandbox, path: '/data', recursive: true });
  t.regex(await failure(client, 'file_stat', { sandbox, path: '/data' }), /not_found/u);
  t.regex(await failure(client, 'file_read', { sandbox, path: 'no' }), /absolute path/u);
});

test('shows files as resources', async (t) => {
  const { client, sandbox } = t.context;
  const { resourceTemplates } = await client.listResourceTemplates();
  t.is(resourceTemplates.length, 2);
  await data(client, 'file_write', { sandbox, path: '/etc/a note', content: 'hello' });
  const uri = `berth://sandboxes/${sandbox}/files/etc/a%20note`;
  const { contents } = await client.readResource({ uri });
  t.like(contents[0], { text: 'hello', mimeType: 'text/plain' });
  const error = await t.throwsAsync(client.readResource({ uri: `${uri}-not` }));
  t.regex(error.message, /not_found/u);
});

test('uses disks', async (t) => {
  const { client } = t.context;
  await data(client, 'disk_create', { name: 'notes' });
  const path = 'in/a file';
  await data(client, 'disk_write_file', { disk: 'notes', path, content: 'one\ntwo\n' });
  const run = await data(client, 'disk_exec', { disk: 'notes', command: 'cat in/*; exit 4' });
  t.like(run, { exit_code: 4, stdout: 'one\ntwo\n' });
  const { matches } = await data(client, 'disk_grep', { disk: 'notes', pattern: 'tw.' });
  t.deepEqual(matches, [{ file: path, line: 2, text: 'two' }]);
  t.is((await data(client, 'disk_read_file', { disk: 'notes', path }))['content'], 'one\ntwo\n');
  const { contents } = await client.readResource({ uri: 'berth://disks/notes/files/in/a%20file' });
  t.like(contents[0], { text: 'one\ntwo\n' });
  const { disks } = await data<{ disks: object[] }>(client, 'disk_list');
  t.is(disks.length, 1);
  t.false(JSON.stringify(disks).includes('dt-'));
});

test('acts from the address of its caller, whatever the caller says of it', async (t) => {
  const { stack } = t.context;
  const api = await stack.newClient();
  const message = {
    ...{ jsonrpc: '2.0', id: 1, method: 'tools/call' },
    params: { name: 'disk_create', arguments: { name: 'from-elsewhere' } },
  };
  const url = new URL(stack.baseUrl);
  const answered = httpRequest(new URL('/mcp', url), {
    method: 'POST',
    localAddress: '127.0.0.9',
    headers: {
      authorization: `Bearer ${api.key}`,
      accept: 'application/json, text/event-stream',
      'content-type': 'application/json',
      'x-berth-client': 'guessed 127.0.0.8',
      'x-forwarded-for': '127.0.0.7',
    },
  });
  answered.end(JSON.stringify(message));
  const [response] = (await once(answered, 'response')) as [IncomingMessage];
  t.is(response.statusCode, 200);
  t.regex(await textOfStream(response), /from-elsewhere/u);
  const { data: events } = (await api.call<{ data: ActivityEvent[] }>('GET', '/api/activity')).body;
  const created = events.find(({ details }) => details['operation'] === 'createDisk');
  t.is(created?.details['address'], '127.0.0.9');
});

test('starts processes, writes to them and reads on', async (t) => {
  const { client, sandbox } = t.context;
  const command = 'while read line; do echo "got $line"; done; echo over; exit 5';
  const { process_id } = await data(client, 'process_start', { sandbox, command });
  const process = { sandbox, process_id };
  await data(client, 'process_input', { ...process, content: 'one\n' });
  const first = await data(client, 'process_output', process);
  t.like(first, { stdout: 'got one\n', running: true, next_offset: 8 });
  await data(client, 'process_input', { ...process, content: 'two\n', end: true });
  const offset = first['next_offset'];
  const second = await data(client, 'process_output', { ...process, offset, until_exit: true });
  t.like(second, {
    stdout: 'got two\nover\n',
    running: false,
    exit_code: 5,
    exit_status: 'failed',
  });

  const other = await data(client, 'process_start', { sandbox, command: 'cat' });
  const cat = { sandbox, process_id: other['process_id'] };
  t.like(await data(client, 'process_output', { ...cat, wait_seconds: 0 }), { running: true });
  await data(client, 'process_kill', cat);
  t.like(await data(client, 'process_output', { ...cat, until_exit: true }), {
    running: false,
    exit_status: 'cancelled',
  });
});

test('output of a process ends with a whole character, unless nothing else comes', async (t) => {
  const { client, sandbox } = t.context;
  const command = String.raw`printf 'a\342\202'; read _; printf '\254\342'; sleep 1000`;
  const { process_id } = await data(client, 'process_start', { sandbox, command });
  const process = { sandbox, process_id };
  t.like(await data(client, 'process_output', process), { stdout: 'a', next_offset: 1 });
  await data(client, 'process_input', { ...process, content: '\n' });
  const second = await data(client, 'process_output', { ...process, offset: 1 });
  t.like(second, { stdout: '€', next_offset: 4 });
  const third = await data(client, 'process_output', { ...process, offset: 4, wait_seconds: 0 });
  t.like(third, { stdout: '\ufffd', next_offset: 5 });
  await data(client, 'process_kill', process);
});

test('sets the hook of copies, and warns of what copies share', async (t) => {
  const { client } = t.context;
  const fields = { mem_size_mib: 256, copy_hook: 'one' };
  const { sandbox_id: sandbox } = await data(client, 'sandbox_create', fields);
  t.is((await data(client, 'sandbox_get', { sandbox }))['copy_hook'], 'one');
  const copy = await data(client, 'sandbox_fork', { sandbox, copy_hook: 'two' });
  t.is(copy['copy_hook'], 'two');
  const { tools } = await client.listTools();
  const fork = tools.find(({ name }) => name === 'sandbox_fork');
  t.regex(fork?.description ?? '', /Warning: .*same random numbers/u);
  await data(client, 'sandbox_delete', { sandbox: copy['sandbox_id'] });
  await data(client, 'sandbox_delete', { sandbox });
});

test('pauses, resumes and waits', async (t) => {
  const { client } = t.context;
  const { sandbox_id: sandbox } = await data(client, 'sandbox_create', { mem_size_mib: 256 });
  t.is((await data(client, 'sandbox_pause', { sandbox }))['status'], 'paused');
  const refused = await failure(client, 'sandbox_run', { sandbox, command: 'true' });
  t.regex(refused, /sandbox_not_running.*sandbox_resume/su);
  const resuming = data(client, 'sandbox_wait', { sandbox, timeout_seconds: 30 });
  await data(client, 'sandbox_resume', { sandbox });
  t.like(await resuming, { status: 'running', reached: true });
  await data(client, 'sandbox_delete', { sandbox });
  t.regex(await failure(client, 'sandbox_get', { sandbox }), /not_found.*sandbox_list/su);
});

test('tells how far long work is', async (t) => {
  const { client, sandbox } = t.context;
  const told: (string | undefined)[] = [];
  const command = 'for n in 1 2 3 4; do echo "step $n"; sleep 1.1; done';
  await client.callTool({ name: 'sandbox_run', arguments: { sandbox, command } }, undefined, {
    onprogress: ({ message }) => told.push(message),
  });
  t.true(told.some((message) => message?.includes('step')));
});

test('sees nothing of other accounts', async (t) => {
  const { stack, sandbox } = t.context;
  const stranger = await connect(stack.baseUrl, (await stack.newClient()).key);
  const id = { sandbox };
  for (const [tool, input] of [
    ['sandbox_get', id],
    ['sandbox_run', { ...id, command: 'true' }],
    ['sandbox_delete', id],
    ['file_read', { ...id, path: '/etc/passwd' }],
    ['process_output', { ...id, process_id: 'x' }],
    ['disk_exec', { disk: 'dsk-0123456789abcdef', command: 'true' }],
  ] as const) {
    t.regex(await failure(stranger, tool, input), /not_found/u, tool);
  }
  t.deepEqual(await data(stranger, 'sandbox_list'), { sandboxes: [], total: 0 });
  await stranger.close();
});

test('ends a command whose caller hangs up', async (t) => {
  const { stack, api, sandbox } = t.context;
  const mark = newMark();
  const client = await connect(stack.baseUrl, api.key);
  const running = use(client, 'sandbox_run', { sandbox, command: `sleep 9${mark}` });
  running.catch(() => undefined);
  await waitFor('the command to run', () => isRunning(api, sandbox, mark));
  await client.close();
  await waitFor('its end', async () => !(await isRunning(api, sandbox, mark)));
  t.pass();
});

test('ends a command that is cancelled, through any control node', async (t) => {
  const { stack, api, sandbox } = t.context;
  const other = await stack.addControl();
  await other.start();
  const mark = newMark();
  const client = await connect(stack.baseUrl, api.key);
  const session = (client.transport as StreamableHTTPClientTransport).sessionId ?? '';
  t.regex(session, /^[0-9a-f-]{36}$/u);
  const request = { name: 'sandbox_run', arguments: { sandbox, command: `sleep 9${mark}` } };
  const body = JSON.stringify({
    jsonrpc: '2.0',
    id: 'mine',
    method: 'tools/call',
    params: request,
  });
  const running = post(stack.baseUrl, api.key, body, { 'mcp-session-id': session });
  await waitFor('the command to run', () => isRunning(api, sandbox, mark));
  const cancel = (headers: Readonly<Record<string, string>>): Promise<Response> => {
    const params = { requestId: 'mine', reason: 'enough' };
    const message = { jsonrpc: '2.0', method: 'notifications/cancelled', params };
    const url = other.environment['PUBLIC_BASE_URL'] ?? '';
    return post(url, api.key, JSON.stringify(message), headers);
  };
  t.is((await cancel({ 'mcp-session-id': 'of-another' })).status, 202);
  await sleep(300);
  t.true(await isRunning(api, sandbox, mark));
  t.is((await cancel({ 'mcp-session-id': session })).status, 202);
  await waitFor('its end', async () => !(await isRunning(api, sandbox, mark)));
  t.false((await (await running).text()).includes('"result"'));
  await client.close();
});

test('refuses what is not a message of a caller that it knows', async (t) => {
  const { stack, api } = t.context;
  const { baseUrl } = stack;
  const status = async (...given: Parameters<typeof post>): Promise<number> => {
    const response = await post(...given);
    await response.text();
    return response.status;
  };
  const { key: apiKey } = api;
  t.is(await status(baseUrl, apiKey), 200);
  t.is(await status(baseUrl, 'key-wrong'), 401);
  t.is(await status(baseUrl, apiKey, undefined, { origin: 'https://evil.example' }), 403);
  t.is(await status(baseUrl, apiKey, undefined, { origin: ALLOWED }), 200);
  t.is(await status(baseUrl, apiKey, undefined, { origin: new URL(baseUrl).origin }), 200);
  t.is(await status(baseUrl, apiKey, undefined, { accept: 'text/plain' }), 406);
  t.is(await status(baseUrl, apiKey, undefined, { 'content-type': 'text/plain' }), 400);
  t.is(await status(baseUrl, apiKey, undefined, { 'mcp-protocol-version': '1999-01-01' }), 400);
  for (const body of ['', '{', '[]', '"x"', '{"method":"ping"}', '['.repeat(40)]) {
    t.is(await status(baseUrl, apiKey, body), 400, body);
  }
  t.is(await status(baseUrl, apiKey, 'x'.repeat(9 * MiB)), 413);
  const get = await fetch(new URL('/mcp', baseUrl), { headers: { authorization: apiKey } });
  t.is(get.status, 405);
  t.is(get.headers.get('allow'), 'POST');
  const unknown = { jsonrpc: '2.0', id: 7, method: 'tools/nothing' };
  const answer = await (await post(baseUrl, apiKey, JSON.stringify(unknown))).text();
  t.regex(answer, /"code":-32601/u);
});

test('names fields that a tool does not have', async (t) => {
  const { client, sandbox } = t.context;
  const text = await failure(client, 'sandbox_run', { sandbox, command: 'true', comand: 'x' });
  t.regex(text, /comand/u);
});

test('offers the same on standard input and output, and ends with its parent', async (t) => {
  const { stack, api, client, sandbox } = t.context;
  const cli = await Cli.in(stack.directory, api);
  const [command, ...args] = [...cli.command, 'mcp'];
  const transport = new StdioClientTransport({ command, args, env: { ...cli.environment } });
  const local = new Client({ name: 'test', version: '1' });
  await local.connect(transport);
  t.deepEqual((await local.listTools()).tools, (await client.listTools()).tools);
  t.is((await data(local, 'sandbox_run', { sandbox, command: 'echo here' }))['stdout'], 'here\n');
  const mark = newMark();
  const running = use(local, 'sandbox_run', { sandbox, command: `sleep 9${mark}` });
  running.catch(() => undefined);
  await waitFor('the command to run', () => isRunning(api, sandbox, mark));
  const { pid } = transport;
  await local.close();
  await waitFor('the end of the command', async () => !(await isRunning(api, sandbox, mark)));
  await waitFor('the end of the server', () => Promise.resolve(!existsSync(`/proc/${pid}`)));
});
