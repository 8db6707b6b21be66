import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import type { Middleware } from 'koa';
import { AppError } from '../../../shared/errors.ts';
import { parseJson } from '../../../shared/json.ts';
import type { RequestState } from '../../http/middleware/request-state.ts';
import { DOCS } from './guides.ts';
import type { SiteContent } from './site.ts';
import { type ContentCoding, SiteFile } from './site-file.ts';

/** Everything comes from this origin, and nothing but our own files runs. */
const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "connect-src 'self'",
  "img-src 'self' data:",
  "form-action 'none'",
  "base-uri 'none'",
  "frame-ancestors 'none'",
].join('; ');

const CODINGS: readonly ContentCoding[] = ['br', 'gzip'];
const IMMUTABLE = 'public, max-age=31536000, immutable';
/** Pages are asked for again, and mostly answered with 304. */
const REVALIDATED = 'public, no-cache';

type Site = ReadonlyMap<string, SiteFile>;

/** Made in a thread of its own, since it takes longer than other requests should wait. */
async function openSite(document: string): Promise<Site> {
  const worker = new Worker(new URL('build-worker.ts', import.meta.url), {
    workerData: parseJson(document),
    env: {},
  });
  const [files] = (await once(worker, 'message')) as [SiteContent[]];
  return new Map(files.map((file) => [file.path, new SiteFile(file)]));
}

/**
 * Serves the documentation below `/docs`: the API reference and the guides of this repository. The
 * site is made at the first request and kept in memory.
 * @param document the API's description, as text
 */
export function serveDocs(document: string): Middleware<RequestState> {
  let site: Promise<Site> | undefined;
  return async (ctx) => {
    ctx.state.routePath = DOCS;
    site ??= openSite(document).catch((error: unknown) => {
      site = undefined; // The next request tries again.
      throw error;
    });
    const path = ctx.path.replace(/\/$/u, '');
    const file = (await site).get(path);
    if (file === undefined) throw new AppError('not_found', `there is no page ${ctx.path}`);
    const coding = file.type.startsWith('image/')
      ? undefined
      : CODINGS.find((known) => ctx.acceptsEncodings(known) === known);
    ctx.set({
      'content-security-policy': POLICY,
      'x-content-type-options': 'nosniff',
      'referrer-policy': 'no-referrer',
      'cross-origin-opener-policy': 'same-origin',
      'cache-control': path.startsWith(`${DOCS}/assets/`) ? IMMUTABLE : REVALIDATED,
      vary: 'Accept-Encoding',
      etag: `"${file.hash}${coding === undefined ? '' : `-${coding}`}"`,
      ...(coding === undefined ? {} : { 'content-encoding': coding }),
    });
    ctx.type = file.type;
    ctx.status = 200;
    if (ctx.fresh) {
      ctx.status = 304;
      return;
    }
    ctx.body = await file.body(coding);
  };
}
