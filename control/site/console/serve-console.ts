import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Middleware } from 'koa';
import mime from 'mime-types';
import { AppError } from '../../../shared/errors.ts';
import { type ContentCoding, SiteFile } from '../docs/site-file.ts';
import type { RequestState } from '../../http/middleware/request-state.ts';

const CONSOLE = '/console';
const ASSETS = `${CONSOLE}/assets/`;
const CODINGS: readonly ContentCoding[] = ['br', 'gzip'];
const IMMUTABLE = 'public, max-age=31536000, immutable';

type Files = ReadonlyMap<string, SiteFile>;

/** The public URLs of hosts. */
export interface PublicUrls {
  readonly urls: readonly string[];
  /** Whether there are no others. */
  readonly areAll: boolean;
}

/**
 * Reads what set-up has built: the page, and assets whose names carry the hash of their content.
 */
async function readFiles(directory: string): Promise<Files> {
  const read = async (path: string, name: string): Promise<[string, SiteFile]> => {
    const text = await readFile(join(directory, name), 'utf8');
    return [path, new SiteFile({ path, type: mime.lookup(name) || 'text/plain', content: text })];
  };
  const names = await readdir(join(directory, 'assets'));
  const assets = names.map((name) => read(`${ASSETS}${name}`, join('assets', name)));
  return new Map(await Promise.all([read(CONSOLE, 'index.html'), ...assets]));
}

/** The most origins in the page's policy: proxies accept headers of some kilobytes. */
const ORIGINS_MAX = 50;

/**
 * The WebSockets that the page may open, which lead straight to hosts: some origins, or schemes.
 */
function socketSources({ urls, areAll }: PublicUrls): string[] {
  const origins = [...new Set(urls.map(socketOrigin))];
  if (areAll && origins.length <= ORIGINS_MAX) return origins;
  return [...new Set(origins.map((origin) => new URL(origin).protocol))];
}

const policy = (sockets: readonly string[]): string =>
  [
    "default-src 'none'",
    "script-src 'self'",
    // The terminal writes its colours and sizes into style elements of its own.
    "style-src 'self' 'unsafe-inline'",
    `connect-src ${["'self'", ...sockets].join(' ')}`,
    "img-src 'self' blob: data:",
    "form-action 'none'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
  ].join('; ');

/** `wss://host-1.example` of `https://host-1.example/`. */
const socketOrigin = (url: string): string => new URL(url).origin.replace(/^http/u, 'ws');

/**
 * Serves the console below `/console`: one page, which shows whatever its path names, and its
 * assets.
 * @param directory what `clients/console/scripts/build.ts` has built
 * @param hosts those that are there now
 */
export function serveConsole(directory: string, hosts: () => PublicUrls): Middleware<RequestState> {
  let files: Promise<Files> | undefined;
  return async (ctx) => {
    ctx.state.routePath = CONSOLE;
    files ??= readFiles(directory).catch((error: unknown) => {
      files = undefined; // The next request tries again.
      throw new AppError('not_found', 'the console is not built: run ./scripts/setup', {
        cause: error,
      });
    });
    const isAsset = ctx.path.startsWith(ASSETS);
    const file = (await files).get(isAsset ? ctx.path : CONSOLE);
    if (file === undefined) throw new AppError('not_found', `there is no file ${ctx.path}`);
    const coding = CODINGS.find((known) => ctx.acceptsEncodings(known) === known);
    ctx.set({
      'content-security-policy': policy(socketSources(hosts())),
      'x-content-type-options': 'nosniff',
      'referrer-policy': 'no-referrer',
      'cross-origin-opener-policy': 'same-origin',
      'cross-origin-resource-policy': 'same-origin',
      // The page is small, and its policy names the hosts of the moment.
      'cache-control': isAsset ? IMMUTABLE : 'no-store',
      vary: 'Accept-Encoding',
      ...(coding === undefined ? {} : { 'content-encoding': coding }),
    });
    ctx.type = file.type;
    ctx.status = 200;
    ctx.body = await file.body(coding);
  };
}
