/*
 * Credentials that a policy adds to requests of a sandbox: they arrive, and are nowhere else. In
 * containers; with BERTH_TEST_FULL=1 in virtual machines, whose memory is searched as well.
 */
import { execFile } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import anyTest, { type TestFn } from 'ava';
import { authorityOf } from '../../agent/network/egress/authority.ts';
import type { ApiClient } from '../helpers/api.ts';
import { Outside } from '../helpers/outside.ts';
import {
  bring,
  containerSettings,
  createSandbox,
  forkSandbox,
  getSandbox,
  outputOf,
  removeSandbox,
  sandboxPath,
  sandboxSettings,
} from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { isFull } from '../helpers/full.ts';

interface Context {
  readonly outside: Outside;
  readonly stack: Stack;
  readonly api: ApiClient;
  readonly directory: string;
}

const test = anyTest.serial as TestFn<Context>;
const SECRET = `sk-${randomBytes(12).toString('hex')}`;
const AUTHORIZATION = `Bearer ${SECRET}`;
const HASH = createHash('sha256').update(AUTHORIZATION).digest('hex');
const RULE = { target: 'api.test', transform: { headers: { authorization: AUTHORIZATION } } };
const NETWORK = { egress: { default: 'deny', allow: [RULE] } };
const SHOWN = {
  egress: {
    default: 'deny',
    allow: [{ target: 'api.test', transform: { headers: { authorization: null } } }],
  },
};

test.before(async (t) => {
  const outside = await Outside.open({ 'api.test': 1, 'other.test': 2 });
  const directory = await mkdtemp(join(tmpdir(), 'berth-test-'));
  const { certificate, key } = await authorityOf(randomBytes(32), 'outside');
  const trusted = join(directory, 'outside.pem');
  await writeFile(trusted, certificate);
  const server = new URL('../fixtures/outside-https.ts', import.meta.url).pathname;
  const keys = { CERTIFICATE: certificate, KEY: key };
  await outside.start([process.execPath, server, '443', 'api.test'], keys);
  const settings = isFull ? sandboxSettings() : containerSettings();
  const network = { ...outside.settings, SANDBOX_TRUSTED_CA: trusted };
  const stack = await Stack.start({ ...settings, ...network });
  t.context = { outside, stack, api: await stack.newClient(), directory };
});

test.after.always(async (t) => {
  const { stack, outside, directory } = t.context as Partial<Context>;
  await stack?.stop();
  await outside?.[Symbol.asyncDispose]();
  if (directory !== undefined) await rm(directory, { recursive: true });
});

const CURL = 'curl -sS --max-time 20';

/** The server's answer to a program in the sandbox that knows no secret. */
const ask = (api: ApiClient, id: string, program = `${CURL} -i`): Promise<string> =>
  outputOf(api, id, `${program} https://api.test/v1 2>&1 || true`);

/** Files of the stack that have the text. */
async function filesWith(directory: string, text: string): Promise<string> {
  const args = ['-rlaF', '--devices=skip', '--exclude-dir=mounts', text, directory];
  return promisify(execFile)('grep', args).then(
    ({ stdout }) => stdout,
    (error: { code?: number; stdout?: string }) => (error.code === 1 ? '' : String(error.stdout)),
  );
}

test('a sandbox’s requests have the header, and nothing that it sees or leaves has', async (t) => {
  const { api, stack, outside } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { network: NETWORK });
  t.deepEqual((await getSandbox(api, id)).network, SHOWN);
  const answer = await ask(api, id);
  t.true(answer.includes(HASH), answer);
  t.false(answer.includes(SECRET));
  t.regex(answer, /x-echo: \*+/iu);
  // By the system's store, and by another TLS library.
  const bare = await ask(api, id, `env -i PATH="$PATH" ${CURL}`);
  t.true(bare.includes(HASH), bare);
  const python = 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read())';
  t.true((await ask(api, id, `python3 -c '${python}'`)).includes(HASH));
  const denied = `${CURL} --resolve other.test:443:${outside.address(2)} https://other.test/`;
  t.regex(await outputOf(api, id, `${denied} 2>&1 || true`), /reset|refused|denied/iu);

  const decisions = await api.call('GET', `${sandboxPath(id)}/network/decisions`);
  t.regex(JSON.stringify(decisions.body), /"name":"other.test"/u);
  t.false(JSON.stringify(decisions.body).includes(SECRET));

  const { sandbox_id: child } = await forkSandbox(api, id);
  t.true((await ask(api, child)).includes(HASH));
  const certificates = await Promise.all(
    [id, child].map((each) => outputOf(api, each, 'cat /etc/berth/egress-ca.crt')),
  );
  t.is(new Set(certificates).size, 2);
  await bring(api, id, 'pause', 'paused');
  t.is(await filesWith(stack.directory, SECRET), '');
  await bring(api, id, 'resume', 'running');
  t.true((await ask(api, id)).includes(HASH));

  await stack.agent.stop('SIGKILL');
  await stack.startAgent();
  t.true((await ask(api, id)).includes(HASH));
  const inside =
    'grep -rlaF "$(printf sk-)$PART" / --devices=skip --exclude-dir=proc --exclude-dir=sys';
  t.is(await outputOf(api, id, `PART=${SECRET.slice(3)}; ${inside} 2>/dev/null || true`), '');
  t.is(await filesWith(stack.directory, SECRET), '');
  await removeSandbox(api, child);
  await removeSandbox(api, id);
});

test('a rule that is added while a sandbox runs counts for its next commands', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  t.notRegex(await ask(api, id), /"hash"/u); // Its system does not trust the outside's authority.
  const put = await api.call('PUT', `${sandboxPath(id)}/network`, NETWORK);
  t.like(put, { status: 200, body: { data: SHOWN } });
  t.true((await ask(api, id)).includes(HASH));
  t.is((await api.call('PUT', `${sandboxPath(id)}/network`, {})).status, 200);
  t.notRegex(await ask(api, id), new RegExp(HASH, 'u'));
  await removeSandbox(api, id);
});
