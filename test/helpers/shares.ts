import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { type IncomingHttpHeaders, type IncomingMessage, request } from 'node:http';
import { buffer } from 'node:stream/consumers';
import { signToken } from '../../shared/secrets.ts';
import type { ShareUrl } from '../../shared/schemas/share.ts';
import type { ApiClient } from './api.ts';
import type { Stack } from './stack.ts';

export const share = async (
  api: ApiClient,
  diskId: string,
  key: string,
  expiresIn?: number,
): Promise<string> => {
  const body = { key, ...(expiresIn === undefined ? {} : { expiresIn }) };
  return (await api.data<ShareUrl>('POST', `/api/disks/${diskId}/share`, body)).url;
};

/** A link as control makes it, with whatever claims and keys the test wants. */
export function forgeLink(
  stack: Stack,
  claims: Record<string, string>,
  { expiresAt = Date.now() + 60_000, key = stack.environment['SIGNING_KEYS'] ?? '' } = {},
): string {
  return `${stack.baseUrl}/api/shared/${signToken([key], 'share', claims, expiresAt)}`;
}

export type Headers = Record<string, string>;

/** Sends a request unchanged on a new connection and waits for the answer's head. */
export async function open(url: string, headers: Headers = {}, method = 'GET') {
  const sent = request(url, { method, headers, agent: false });
  sent.end();
  const [answer] = (await once(sent, 'response')) as [IncomingMessage];
  return answer;
}

export interface Fetched {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly body: Buffer;
}

/** A whole answer. @throws Error when the connection breaks before its end */
export async function download(url: string, headers: Headers = {}, method = 'GET') {
  const answer = await open(url, headers, method);
  const body = await buffer(answer);
  return { status: answer.statusCode ?? 0, headers: answer.headers, body } satisfies Fetched;
}

/** The code of an error's envelope. */
export const codeOf = ({ body }: Fetched): unknown =>
  Reflect.get(JSON.parse(body.toString()) as object, 'code');

/** Runs curl. @returns its exit code and output */
export async function curl(
  args: readonly string[],
  cwd: string,
): Promise<{ code: number; stdout: string }> {
  const child = spawn('curl', ['-sS', ...args], { cwd, stdio: ['ignore', 'pipe', 'pipe'] });
  const [stdout, [code]] = await Promise.all([
    buffer(child.stdout),
    once(child, 'close') as Promise<[number]>,
  ]);
  return { code, stdout: stdout.toString() };
}

/** The parts of a multipart/byteranges body (RFC 9110, section 14.6). */
export function splitParts({ headers, body }: Fetched): { range: string; bytes: Buffer }[] {
  const [, boundary = ''] = /boundary=(\S+)$/u.exec(headers['content-type'] ?? '') ?? [];
  const text = body.toString('latin1');
  const [, ...parts] = `\r\n${text}`.split(`\r\n--${boundary}`);
  if (parts.pop() !== '--\r\n') throw new Error('the last boundary is missing');
  return parts.map((part) => {
    const end = part.indexOf('\r\n\r\n');
    const [, range = ''] = /content-range: (.*)/iu.exec(part.slice(0, end)) ?? [];
    return { range, bytes: Buffer.from(part.slice(end + 4), 'latin1') };
  });
}
