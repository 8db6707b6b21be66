/** Makes this host a part of a cluster, with a token from `scripts/admin host invite`. */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readFile, rm } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { parseArgs, promisify } from 'node:util';
import Type from 'typebox';
import { Agent, request } from 'undici';
import { joinTokenPattern, openJoinBundle, proofOf } from '../shared/host-invitation.ts';
import { parseJson } from '../shared/json.ts';
import { JoinReply } from '../shared/schemas/host.ts';
import { randomSecret } from '../shared/secrets.ts';
import { MiB } from '../shared/units.ts';
import { compile } from '../shared/validate.ts';
import { readFileIfExists, writePrivateFile } from './env-file.ts';
import { HOST_SHARED, installRole, JOINED } from './install-roles.ts';
import { commands, paths } from './local-paths.ts';

const USAGE = `usage: ${commands.agent} join <url> <token> --address <address> [--ca <file>]
                               [--cert <file> --key <file>] [--root <directory>]
Fetches the settings of a cluster from a control node, writes /etc/berth/agent.env, and starts
berth-agent.service. May be repeated on the same host while the token lives.
<url>      of a control node, as callers use it
<token>    from '${commands.admin} host invite' on a control node
--address  address of this host that the other hosts reach
--ca       certificates (PEM) of who signed the one of <url>, unless the system knows them
--cert, --key  this host's certificate and key (PEM), where the cluster has TLS between its nodes
--root     writes below this directory instead of /, and starts nothing`;

const TIMEOUT_MS = 30_000;
const ANSWER_BYTES_MAX = MiB;
const run = promisify(execFile);

const checkReply = compile(
  Type.Object({ success: Type.Literal(true), data: JoinReply }, { additionalProperties: true }),
);
const checkRefusal = compile(Type.Object({ error: Type.String() }));

class UsageError extends Error {}

interface Joining {
  readonly url: URL;
  readonly token: string;
  readonly address: string;
  readonly root: string;
  readonly ca: string | undefined;
  readonly cert: string | undefined;
  readonly key: string | undefined;
}

/** @throws UsageError */
function readArguments(): Joining | undefined {
  const text = { type: 'string' } as const;
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      ...{ address: text, root: text, ca: text, cert: text, key: text },
      help: { type: 'boolean' },
    },
  });
  if (values.help === true) return undefined;
  const [url = '', token = '', ...rest] = positionals;
  if (rest.length > 0 || token === '') throw new UsageError('give a URL and a token');
  if (!/^https?:\/\//u.test(url) || !URL.canParse(url)) {
    throw new UsageError(`${url} is not the URL of a control node, such as https://berth.example`);
  }
  if (!new RegExp(joinTokenPattern, 'u').test(token)) {
    throw new UsageError('this is no join token: copy all of what host invite has printed');
  }
  const { address, root = '/', ca, cert, key } = values;
  if (address === undefined) throw new UsageError('give --address: how the others reach this host');
  if ((cert === undefined) !== (key === undefined)) throw new UsageError('give --cert and --key');
  return { url: new URL(url), token, address, root, ca, cert, key };
}

/** The nonce of an attempt whose answer may have been lost, or a new one. */
async function nonceOf(root: string, token: string): Promise<string> {
  const path = join(root, 'etc/berth/joining');
  const [known, nonce] = ((await readFileIfExists(path)) ?? '').split('\n');
  const proof = proofOf(token);
  if (known === proof && nonce !== undefined && nonce !== '') return nonce;
  const made = randomSecret();
  await writePrivateFile(path, `${proof}\n${made}\n`);
  return made;
}

/** @throws Error that says what to do */
async function ask({ url, token, ca }: Joining, nonce: string): Promise<string> {
  const trusted = ca === undefined ? {} : { ca: await readFile(ca, 'utf8') };
  const timeouts = { headersTimeout: TIMEOUT_MS, bodyTimeout: TIMEOUT_MS };
  const dispatcher = new Agent({
    connect: { ...trusted, timeout: TIMEOUT_MS },
    ...timeouts,
    maxResponseSize: ANSWER_BYTES_MAX,
  });
  const target = new URL('api/hosts/join', `${url.href.replace(/\/$/u, '')}/`);
  try {
    const name =
      hostname()
        .replaceAll(/[^A-Za-z0-9.-]/gu, '-')
        .slice(0, 64) || 'host';
    const { statusCode, body } = await request(target, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ proof: proofOf(token), nonce, name }),
      dispatcher,
    });
    const answer = parseJson(await body.text());
    if (statusCode === 200) return checkReply(answer, 'answer').data.sealed;
    throw new Error(checkRefusal(answer, 'answer').error);
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new Error(`${target.origin} did not let this host join: ${why}`, { cause: error });
  } finally {
    await dispatcher.close();
  }
}

/** @throws Error when the cluster needs what was not given, or the configuration is not accepted */
async function configure(joining: Joining, sealed: string): Promise<string> {
  const { token, address, root, cert, key } = joining;
  const { settings, files } = openJoinBundle(token, sealed);
  const known = new Set<string>([...HOST_SHARED, ...JOINED]);
  const strange = [...Object.keys(settings), ...Object.keys(files)].find(
    (name) => !known.has(name),
  );
  if (strange !== undefined) throw new Error(`the cluster is newer: it sends ${strange}. Upgrade`);
  if (files['CLUSTER_TLS_CA'] !== undefined && cert === undefined) {
    throw new Error('the cluster has TLS between its nodes: give --cert and --key of this host');
  }
  const cluster = { ...settings };
  for (const [name, text] of Object.entries(files)) {
    const path = join('/etc/berth', `${name.toLowerCase().replaceAll('_', '-')}.pem`);
    await writePrivateFile(join(root, path), text);
    cluster[name] = join(root, path);
  }
  const own =
    cert === undefined || key === undefined ? {} : { CLUSTER_TLS_CERT: cert, CLUSTER_TLS_KEY: key };
  const [file = ''] = await installRole('agent', { root, address, cluster, own });
  const agent = join(paths.root, 'agent/main.ts');
  await run(process.execPath, [agent, '--check', '--config', file]).catch((error: unknown) => {
    throw new Error(`${file}: ${String(Reflect.get(Object(error), 'stderr'))}`, { cause: error });
  });
  return file;
}

async function start(): Promise<void> {
  await run('systemd-sysusers');
  await run('systemctl', ['daemon-reload']);
  await run('systemctl', ['enable', 'berth-agent']);
  await run('systemctl', ['restart', 'berth-agent']);
}

async function main(): Promise<void> {
  const joining = readArguments();
  if (joining === undefined) {
    console.log(USAGE);
    return;
  }
  const { root, token } = joining;
  await mkdir(join(root, 'etc/berth'), { recursive: true, mode: 0o711 });
  const sealed = await ask(joining, await nonceOf(root, token));
  const file = await configure(joining, sealed);
  await rm(join(root, 'etc/berth/joining'), { force: true });
  console.log(`berth: wrote ${file}`);
  if (root !== '/' || !existsSync('/run/systemd/system')) {
    console.log('berth: next: systemctl enable --now berth-agent');
    return;
  }
  await start();
  console.log('berth: berth-agent.service runs; the host appears in: berth host ls');
}

main().catch((error: unknown) => {
  const message = error instanceof Error ? error.message : String(error);
  console.error(`berth-agent: ${message}`);
  if (
    error instanceof UsageError ||
    String(Reflect.get(Object(error), 'code')).startsWith('ERR_PARSE_ARGS')
  ) {
    console.error(`\n${USAGE}`);
  }
  process.exitCode = 1;
});
