import test from 'ava';
import { indexPatterns, redactText } from '../../../../agent/network/egress/redactor.ts';
import { secretPatterns } from '../../../../agent/network/egress/secret-patterns.ts';

const toBase64 = (text: string): string => Buffer.from(text).toString('base64');
const toBase64Url = (text: string): string => Buffer.from(text).toString('base64url');

const JWT_HEAD = toBase64Url('{"alg":"HS256","typ":"JWT"}');
const JWT_CLAIMS = toBase64Url('{"sub":"user-1","name":"Ada"}');
const SESSION = 'S3ssion-Value-9';
const KEY = 'Ab12<&>\'"+/=z9';

const HEADERS = {
  authorization: `Bearer ${JWT_HEAD}.${JWT_CLAIMS}.c2lnbmF0dXJlLW9m-TG9uZw`,
  cookie: `sid=${SESSION}; csrf="q1w2e3r4t5"; theme=dark; realm=console.example.com`,
  'x-digest': 'Digest username="operator-77", realm="restricted", response="6629FAE49393A053"',
  'x-custom': `Custom ${toBase64('robot:hunter2hunter2')}`,
  'x-credentials': toBase64('{"username":"robot","password":"opensesame99"}'),
  'x-key': KEY,
  'x-url': 'https://hooks.example.com/services/T0CAFE99?token=u-r-l-s3cret&mode=fast',
  accept: 'text/html, application/json;q=0.9',
  origin: 'https://console.example.com',
  ...{ host: 'console.example.com', Referer: 'https://console.example.com/services' },
  ...{ 'content-type': 'application/json', 'user-agent': 'agent.example.com' },
  'x-api-version': '2024-10-22',
};
const FORWARD_URL =
  'https://gateway.example.com/v1/t3nant-x9/organizations/tenant-blue-team?key=k-987654';

const index = indexPatterns(secretPatterns({ headers: HEADERS, forwardUrl: FORWARD_URL }));
const latin1 = (text: string): string => Buffer.from(text, 'utf8').toString('latin1');
const redact = (text: string): string => redactText(index, latin1(text));

/** Answers in which a server repeats something, and what of it must not be left. */
const ECHOES: Record<string, readonly [echo: string, secret: string]> = {
  'a cookie that is set again': [`sid=${SESSION}; Path=/; HttpOnly`, SESSION],
  'a cookie in JSON': [JSON.stringify({ cookies: { sid: SESSION } }), SESSION],
  'a short cookie with digits': ['{"csrf":"q1w2e3r4t5"}', 'q1w2e3r4t5'],
  'a token without its scheme': [`token ${HEADERS.authorization.slice(7)}`, JWT_CLAIMS],
  'the claims of a JWT': [`payload: ${JWT_CLAIMS}`, JWT_CLAIMS],
  'the signature of a JWT': ['signature: c2lnbmF0dXJlLW9m-TG9uZw', 'c2lnbmF0dXJl'],
  'a parameter of Authorization': ['{"response":"6629FAE49393A053"}', '6629FAE49393A053'],
  'another parameter': ['hello operator-77', 'operator-77'],
  'hexadecimal digits in lower case': ['6629fae49393a053', '6629fae49393a053'],
  'a token in upper case': [SESSION.toUpperCase(), SESSION.toUpperCase()],
  'a token in lower case': [`"${SESSION.toLowerCase()}"`, SESSION.toLowerCase()],
  'credentials as they came': [toBase64('robot:hunter2hunter2'), 'cm9ib3Q6aHVudGVy'],
  'credentials of any scheme, decoded': ['user robot, password hunter2hunter2', 'hunter2hunter2'],
  'credentials in JSON in base64, decoded': ['{"password":"opensesame99"}', 'opensesame99'],
  'base64 of JSON with a token': [
    toBase64(`{"sid":"${SESSION}"}`),
    toBase64(`{"sid":"${SESSION}`).slice(12, 28),
  ],
  'hexadecimal of a token': [Buffer.from(SESSION).toString('hex'), '53337373696f6e2d'],
  'JSON as Go prints it': [String.raw`Ab12\u003c\u0026\u003e'\"+/=z9`, 'Ab12'],
  'JSON as .NET prints it': [String.raw`Ab12\u003C\u0026\u003E\u0027\u0022\u002B/=z9`, 'Ab12'],
  'JSON as PHP prints it': [String.raw`Ab12\u003C\u0026\u003E\u0027\u0022+\/=z9`, 'Ab12'],
  'a query': [`?k=${encodeURIComponent(KEY)}`, 'Ab12'],
  'a query, with all that can be encoded': ['Ab12%3c%26%3e%27%22%2b%2f%3dz9', 'Ab12'],
  'HTML as Python prints it': ['Ab12&lt;&amp;&gt;&#x27;&quot;+/=z9', 'Ab12'],
  'HTML as Go prints it': ['Ab12&lt;&amp;&gt;&#39;&#34;+/=z9', 'Ab12'],
  'UTF-16': [Buffer.from(SESSION, 'utf16le').toString('latin1'), 'S\u00003\u0000s\u0000s'],
  'UTF-16, the other end first': [
    Buffer.from(SESSION, 'utf16le').swap16().toString('latin1'),
    'S\u00003\u0000s\u0000s',
  ],
  'a part of a path with digits': ['no tenant t3nant-x9', 't3nant-x9'],
  'a part of a path of several words': ['no team tenant-blue-team', 'tenant-blue-team'],
  'a value of a query': ['key k-987654 is unknown', 'k-987654'],
  'a part of the path of a URL': ['no service T0CAFE99', 'T0CAFE99'],
  'a value of the query of a URL': ['token=u-r-l-s3cret', 'u-r-l-s3cret'],
};

for (const [kind, [echo, secret]] of Object.entries(ECHOES)) {
  test(`a secret does not come back as ${kind}`, (t) => {
    t.true(latin1(echo).includes(secret), 'the echo has it');
    const got = redact(echo);
    t.false(got.toLowerCase().includes(secret.toLowerCase()), got);
    t.is(got.length, latin1(echo).length);
  });
}

/** Whole values that look like the host names and media types of an ordinary page. */
const LOOKALIKES: Record<string, readonly [name: string, value: string, secret: string]> = {
  'a host name after a scheme': ['authorization', 'Bearer my-password.prod', 'my-password.prod'],
  'a host name with digits': ['authorization', 'Bearer api-key-123.prod', 'api-key-123.prod'],
  'a host name alone': ['x-api-key', 'hunter-secret.live', 'hunter-secret.live'],
  'a short host name with a digit': ['x-api-key', 'key42.io', 'key42.io'],
  'a media type': ['x-api-key', 'text/9f8a7b6c5d4e3f2a1b', 'text/9f8a7b6c5d4e3f2a1b'],
  'a host name with a port': ['x-api-key', 'hello-world.secret:443', 'hello-world.secret:443'],
  'the name of a header': ['x-api-key', 'accept-language', 'accept-language'],
  'a value with a name': ['cookie', 'session=hunter-secret.live', 'hunter-secret.live'],
  'a value in quotes': ['authorization', 'Token token="my-password.prod"', 'my-password.prod'],
  'a value in base64': ['x-api-key', toBase64('hunter-secret.live'), 'hunter-secret.live'],
  'a password in base64': ['authorization', `Basic ${toBase64('a:key42.io')}`, 'key42.io'],
  'no letter and no digit': ['x-api-key', '!?#$%&*+!?#$', '!?#$%&*+!?#$'],
};

for (const [kind, [name, value, secret]] of Object.entries(LOOKALIKES)) {
  test(`a secret does not come back although it looks like ${kind}`, (t) => {
    const found = indexPatterns(
      secretPatterns({ headers: { [name]: value }, forwardUrl: undefined }),
    );
    for (const echo of [secret, `{"got":${JSON.stringify(value)}}`, secret.toUpperCase()]) {
      const got = redactText(found, echo);
      t.false(got.toLowerCase().includes(secret.toLowerCase()), got);
    }
  });
}

test('a value in the query of a forward_url does not come back although it looks like a host', (t) => {
  const forwardUrl = 'https://gateway.example.com/?key=hunter-secret.live';
  const found = indexPatterns(secretPatterns({ headers: {}, forwardUrl }));
  t.notRegex(redactText(found, '{"key":"hunter-secret.live"}'), /hunter/u);
});

test('an ordinary page is not changed, whatever a rule adds', (t) => {
  const page = [
    'HTTP/1.1 401 Unauthorized',
    'Content-Type: text/html; charset=utf-8',
    'WWW-Authenticate: Bearer realm="console.example.com", error="invalid_token"',
    'WWW-Authenticate: Digest realm="restricted", qop="auth", algorithm=MD5',
    'Set-Cookie: theme=dark; Path=/; HttpOnly',
    'Access-Control-Allow-Origin: https://console.example.com',
    'Content-Security-Policy: default-src https://gateway.example.com https://hooks.example.com',
    '',
    '<html><body class="dark"><a href="https://console.example.com/services">Services</a>',
    '<a href="https://gateway.example.com/v1/organizations">Organizations</a> by username',
    '<code>curl -H "Authorization: Bearer $TOKEN" -H "Accept: application/json"</code>',
    '<p>Version 2024-10-22 of agent.example.com. The user robot signs with HS256, response in fast mode.</p>',
    `<script>session("${JWT_HEAD}.${toBase64Url('{"sub":"user-2"}')}.AnotherSignature")</script>`,
    'username password realm response csrf token cookie digest custom credentials',
  ].join('\r\n');
  t.is(redact(page), page);
});

const word = (at: number): string => `k${at}=${String(at).padStart(6, '0')}abc`;

test('a rule of many long values is searched for in bounded memory', (t) => {
  const headers = Object.fromEntries(
    Array.from({ length: 16 }, (_, header) => [
      `x-${header}`,
      Array.from({ length: 500 }, (_unused, at) => word(header * 500 + at)).join('; '),
    ]),
  );
  const patterns = secretPatterns({ headers, forwardUrl: undefined });
  t.true(patterns.length < 512 * 64);
  t.true(patterns.join('').length < 1024 * 1024);
});
