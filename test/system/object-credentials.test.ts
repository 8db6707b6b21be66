/* A credential opens what it was made for: every kind of credential at every operation and door. */
import anyTest, { type TestFn } from 'ava';
import WebSocket from 'ws';
import { operationRows } from '../../agent/edge/s3/operations/table.ts';
import type { ActivityEvent } from '../../shared/schemas/activity.ts';
import type { ApiClient } from '../helpers/api.ts';
import { ask, hostOf, newPortToken } from '../helpers/ingress.ts';
import { ObjectClient, textsOf } from '../helpers/objects.ts';
import { freePorts } from '../helpers/ports.ts';
import { postForm } from '../helpers/post-form.ts';
import { containerSettings, createSandbox, sandboxPath } from '../helpers/sandboxes.ts';
import { share } from '../helpers/shares.ts';
import { type SignedRequest, signRequest, type Wanted } from '../helpers/sigv4-requests.ts';
import { Stack } from '../helpers/stack.ts';
import { type DiskUser, newDiskUser } from '../helpers/tools.ts';

const PORT = 8080;
const KEPT = 'kept.txt';
const DAY_MS = 24 * 3600 * 1000;

interface Context {
  stack: Stack;
  api: ApiClient;
  user: DiskUser;
  s3: ObjectClient;
  ingressPort: number;
  sandboxId: string;
  shareUrl: string;
  portToken: string;
  connectionUrl: string;
}

const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const [ingressPort = 0] = await freePorts(1);
  const settings = { ...containerSettings(), INGRESS_PORT: String(ingressPort) };
  const stack = await Stack.start(settings);
  t.context.stack = stack;
  const api = await stack.newClient();
  const user = await newDiskUser(stack, api);
  const s3 = new ObjectClient(user.s3Url, api.key);
  await s3.put(user.disk, KEPT, 'kept');
  const { sandbox_id: sandboxId } = await createSandbox(api);
  const { token: portToken } = await newPortToken(api, sandboxId, PORT);
  const path = `${sandboxPath(sandboxId)}/connections`;
  const { url: connectionUrl } = await api.data<{ url: string }>('POST', path);
  const shareUrl = await share(api, user.disk, KEPT);
  const things = { api, user, s3, ingressPort, sandboxId, portToken, connectionUrl, shareUrl };
  Object.assign(t.context, things);
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

/** Where a form or a signed request that nobody may carry out is refused. */
const REFUSALS: ReadonlySet<string> = new Set([
  ...['AccessDenied', 'SignatureDoesNotMatch', 'InvalidAccessKeyId', 'InvalidPolicyDocument'],
  ...['AuthorizationQueryParametersError', 'AuthorizationHeaderMalformed'],
]);

interface Case {
  readonly name: string;
  readonly wanted: Wanted;
}

/** A request for each operation of the object API. */
function cases({ user }: Context): Case[] {
  const { bucket, object } = operationRows;
  return [...bucket, ...object].map((row) => {
    const isBucket = (bucket as readonly unknown[]).includes(row);
    const { method, flag, flagValues = ['x'], header } = row;
    const path = isBucket ? `/${user.disk}` : `/${user.disk}/new/object`;
    const source = `/${user.disk}/${KEPT}`;
    return {
      name: row.name,
      wanted: {
        ...{ method, path },
        ...(flag === undefined ? {} : { query: { [flag]: flagValues[0] ?? '' } }),
        ...(header === undefined ? {} : { headers: { [header]: source } }),
      },
    };
  });
}

const formOf = (fields: Record<string, string>): FormData => {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  form.append('file', new Blob(['x']), 'x');
  return form;
};

const bodyOf = ({ name }: Case): FormData | string | undefined => {
  if (name === 'PostObject') return formOf({ key: 'new/form' });
  if (name === 'DeleteObjects')
    return '<Delete><Object><Key>new/gone</Key></Object><Quiet>true</Quiet></Delete>';
  return /^(?:Put|Append|Upload)/u.test(name) ? 'x' : undefined;
};

interface Sent {
  readonly status: number;
  readonly code: string | undefined;
}

async function send(
  { wanted, ...rest }: Case,
  user: DiskUser,
  {
    url,
    headers,
    body,
  }: { url?: string; headers?: Record<string, string>; body?: FormData | string } = {},
): Promise<Sent> {
  const query = new URLSearchParams(wanted.query).toString();
  const content = body ?? bodyOf({ wanted, ...rest });
  const response = await fetch(url ?? `${user.s3Url}${wanted.path}?${query}`, {
    method: wanted.method,
    headers: { ...wanted.headers, ...headers },
    ...(content === undefined ? {} : { body: content }),
  });
  const [code] = textsOf(await response.text(), 'Code');
  return { status: response.status, code };
}

const isAdmitted = ({ status, code }: Sent): boolean =>
  ![401, 403].includes(status) && !REFUSALS.has(code ?? '');

/** Whether a request got as far as its operation, which may lack what it names. */
const isServed = (sent: Sent): boolean =>
  isAdmitted(sent) && sent.status < 500 && sent.code !== 'MethodNotAllowed';

const field = (name: string, value: string): string =>
  `--b\r\nContent-Disposition: form-data; name="${name}"\r\n\r\n${value}\r\n`;

/** The fields that give a signature of another kind out as that of a form. */
const formWith = (request: SignedRequest, policy: string): FormData =>
  formOf({
    ...{ key: 'new/form', 'x-amz-algorithm': 'AWS4-HMAC-SHA256', policy },
    ...{ 'x-amz-credential': request.credential, 'x-amz-date': request.timestamp },
    'x-amz-signature': request.signature,
  });

test('an API key and a signature admit the operation that they were sent for', async (t) => {
  const { api, user } = t.context;
  for (const each of cases(t.context)) {
    t.true(isServed(await send(each, user, { headers: { authorization: api.key } })), each.name);
    for (const form of ['header', 'query'] as const) {
      const { url, headers } = signRequest(user, form, each.wanted);
      t.true(isServed(await send(each, user, { url, headers })), `${form} ${each.name}`);
    }
  }
});

test('a signature admits no operation but the one that it was made for', async (t) => {
  const { user, s3 } = t.context;
  const all = cases(t.context);
  const pairs = all.flatMap((each) =>
    all.filter((other) => other !== each).map((other) => [each, other] as const),
  );
  for (const [each, other] of pairs) {
    // Without the headers that the first operation has besides those of its signature.
    const signed = Object.entries(signRequest(user, 'header', each.wanted).headers);
    const headers = Object.fromEntries(signed.filter(([name]) => !name.includes('copy')));
    const elsewhere = await send(other, user, { headers });
    t.false(isAdmitted(elsewhere), `header of ${each.name} for ${other.name}`);
    const query = signRequest(user, 'query', each.wanted);
    const moved = new URL(query.url);
    moved.pathname = other.wanted.path;
    for (const name of Object.keys(each.wanted.query ?? {})) moved.searchParams.delete(name);
    for (const [name, value] of Object.entries(other.wanted.query ?? {}))
      moved.searchParams.set(name, value);
    const replayed = await send(other, user, { url: moved.href });
    t.false(isAdmitted(replayed), `query of ${each.name} for ${other.name}`);
  }
  t.is((await s3.get(user.disk, KEPT)).text, 'kept');
});

test('a form admits an upload by its policy and no other operation', async (t) => {
  const { user, s3 } = t.context;
  const conditions = [['starts-with', '$key', '']];
  for (const each of cases(t.context)) {
    const { method, query = {} } = each.wanted;
    if (method !== 'POST' || each.wanted.path !== `/${user.disk}`) continue;
    const flags = Object.keys(query).map((name) => `?${name}`);
    const options = { conditions, fields: { key: 'new/form' }, query: flags.join('') };
    const { status } = await postForm(user, options);
    t.is(status, each.name === 'PostObject' ? 204 : 403, each.name);
  }
  // The signature of any request, given out as that of a form, in every operation that has a body.
  const seen = { method: 'GET', path: `/${user.disk}/${KEPT}` };
  const presigned = signRequest(user, 'query', {
    ...seen,
    ...{ expiresSeconds: 1, signedAgoMs: 40 * DAY_MS },
  });
  const recent = signRequest(user, 'header', seen);
  for (const request of [presigned, recent]) {
    for (const policy of [
      request.stringToSign,
      Buffer.from(request.stringToSign).toString('base64'),
    ]) {
      for (const each of cases(t.context)) {
        if (!['PUT', 'POST'].includes(each.wanted.method)) continue;
        const sent = await send(each, user, { body: formWith(request, policy) });
        t.false(isAdmitted(sent), `${each.name}: ${JSON.stringify(sent)}`);
      }
    }
  }
  t.is((await s3.get(user.disk, KEPT)).text, 'kept');
});

test('nobody who has seen a presigned URL or a policy deletes by them', async (t) => {
  const { user, s3 } = t.context;
  const hidden = `<Delete><Object><Key>${KEPT}</Key></Object></Delete>`;
  const seen = signRequest(user, 'query', {
    ...{ method: 'GET', path: `/${user.disk}/other`, expiresSeconds: 1, signedAgoMs: 40 * DAY_MS },
  });
  const fields = {
    ...{ policy: seen.stringToSign, 'x-amz-algorithm': 'AWS4-HMAC-SHA256' },
    ...{ 'x-amz-credential': seen.credential, 'x-amz-date': seen.timestamp },
    'x-amz-signature': seen.signature,
  };
  const form = Object.entries(fields).map(([name, value]) => field(name, value));
  const file = '--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nx\r\n--b--';
  const body = `<Delete>${form.join('')}${file}${hidden.slice('<Delete>'.length)}`;
  const attack = async (headers: Record<string, string>): Promise<string | undefined> => {
    const url = `${user.s3Url}/${user.disk}?delete`;
    const response = await fetch(url, { method: 'POST', body, headers });
    return textsOf(await response.text(), 'Code')[0];
  };
  t.is(await attack({ 'content-type': 'multipart/form-data; boundary=b' }), 'AccessDenied');
  // Not even the owner deletes with a document that is not one.
  t.is(await attack({ authorization: s3.key, 'content-type': 'text/xml' }), 'MalformedXML');
  t.is((await s3.get(user.disk, KEPT)).text, 'kept');
  const conditions = [['starts-with', '$key', 'elsewhere/']];
  for (const expiresInMs of [60_000, -60_000]) {
    const options = { conditions, expiresInMs, fields: { key: 'elsewhere/x' }, query: '?delete' };
    t.is((await postForm(user, options)).code, 'AccessDenied');
  }
});

test('a DeleteObjects call is in the account activity, with its user', async (t) => {
  const { api, user, s3 } = t.context;
  await s3.put(user.disk, 'kept/one', '1');
  const keys = ['kept/one', 'kept/none', 'kept/'].map(
    (key) => `<Object><Key>${key}</Key></Object>`,
  );
  const request = signRequest(user, 'header', {
    ...{ method: 'POST', path: `/${user.disk}`, query: { delete: '' } },
  });
  const body = `<Delete>${keys.join('')}</Delete>`;
  t.is((await fetch(request.url, { method: 'POST', headers: request.headers, body })).status, 200);
  const query = `eventType=disk.objects_deleted&diskId=${user.disk}`;
  const events = await api.data<ActivityEvent[]>('GET', `/api/activity?${query}`);
  const found = events.filter(({ details }) => details['keys'] === 3);
  const { identifier: userIdentifier } = user;
  t.like(found, [{ level: 'info', details: { operation: 'DeleteObjects', userIdentifier } }]);
  const hook = { url: 'https://hooks.example.com/', eventTypes: ['disk.objects_deleted'] };
  t.is((await api.call('POST', '/api/webhooks', hook)).status, 400);
});

test('a policy counts from the time of its signature until it expires', async (t) => {
  const { user } = t.context;
  const options = { conditions: [{ key: 'timed' }], fields: { key: 'timed' } };
  const post = async (more: Parameters<typeof postForm>[1]): Promise<string | number> => {
    const { status, code } = await postForm(user, { ...options, ...more });
    return code ?? status;
  };
  const HOUR_MS = 3600 * 1000;
  t.is(await post({ signedAgoMs: HOUR_MS }), 204);
  t.is(await post({ signedAgoMs: 6 * DAY_MS }), 204);
  t.is(await post({ signedAgoMs: 7 * DAY_MS + 60_000 }), 'AccessDenied');
  t.is(await post({ signedAgoMs: -10 * 60_000 }), 204);
  t.is(await post({ signedAgoMs: -16 * 60_000 }), 'AccessDenied');
  t.is(await post({ signedAgoMs: HOUR_MS, expiresInMs: -1000 }), 'AccessDenied');
  const document = { expiration: new Date(Date.now() + HOUR_MS), conditions: [] };
  const policy = Buffer.from(JSON.stringify(document)).toString('base64');
  const texts = [
    `${policy} `,
    `${policy}\n`,
    `${policy}=`,
    policy.replaceAll('=', ''),
    'bm8=',
    '{}',
  ];
  for (const text of texts.filter((each) => each !== policy)) {
    t.is(await post({ policy: text }), 'InvalidPolicyDocument', text);
  }
});

test('tokens of links, ports and connections open their own doors alone', async (t) => {
  const { api, user, stack, ingressPort, sandboxId, portToken, connectionUrl, shareUrl } =
    t.context;
  const { signature } = signRequest(user, 'query', {
    method: 'GET',
    path: `/${user.disk}/${KEPT}`,
  });
  const shareToken = new URL(shareUrl).pathname.split('/').at(-1) ?? '';
  const connection = new URL(connectionUrl);
  const [tokenName = '', connectionToken = ''] = [...connection.searchParams][0] ?? [];
  t.not(connectionToken, '');
  const credentials = {
    ...{ signature, shareToken, portToken, connectionToken },
    ...{ apiKey: api.key, diskToken: user.token },
  };
  const atShare = async (token: string): Promise<boolean> => {
    const url = `${stack.baseUrl}/api/shared/${encodeURIComponent(token)}`;
    return (await fetch(url)).status === 200;
  };
  const atPort = async (token: string): Promise<boolean> => {
    const headers = { 'x-service-token': token };
    const { status } = await ask(ingressPort, hostOf(PORT, sandboxId), '/', { headers });
    return ![401, 403, 404].includes(status);
  };
  const atConnection = async (token: string): Promise<boolean> => {
    const url = new URL(connectionUrl);
    url.searchParams.set(tokenName, token);
    const socket = new WebSocket(url);
    return new Promise((resolve) => {
      socket.once('error', () => resolve(false));
      socket.once('open', () => {
        socket.terminate();
        resolve(true);
      });
    });
  };
  const atApi = async (token: string): Promise<boolean> =>
    (await fetch(`${stack.baseUrl}/api/disks`, { headers: { authorization: token } })).status ===
    200;
  for (const [name, credential] of Object.entries(credentials)) {
    t.is(await atShare(credential), name === 'shareToken', `${name} as a share link`);
    t.is(await atPort(credential), name === 'portToken', `${name} at a port`);
    t.is(await atConnection(credential), name === 'connectionToken', `${name} as a connection`);
    t.is(await atApi(credential), name === 'apiKey', `${name} at the API`);
    if (name === 'apiKey') continue;
    for (const each of cases(t.context)) {
      const { href } = new URL(`${user.s3Url}${each.wanted.path}`);
      const query = new URLSearchParams({ ...each.wanted.query, 'x-token': credential });
      for (const headers of [
        { authorization: credential },
        { authorization: `Bearer ${credential}` },
        { authorization: 'x', 'x-service-token': credential },
      ]) {
        const sent = await send(each, user, { url: `${href}?${query.toString()}`, headers });
        t.false(isAdmitted(sent), `${name} for ${each.name}`);
      }
    }
  }
});
