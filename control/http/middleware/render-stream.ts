import { pipeline } from 'node:stream/promises';
import { HTTP_LIMITS } from '../limits.ts';
import type { StreamReply } from '../route.ts';
import type { RequestContext } from './request-state.ts';

/**
 * Passes a stream on to the caller at the caller's speed, and notes for the request's log event how
 * far it came. Whatever breaks off in mid-body breaks the connection: it must not look whole.
 * @param idleMs broken off when nothing moved for so long, whichever end stalls
 */
export async function renderStream(
  ctx: RequestContext,
  { status, headers, stream }: StreamReply,
  idleMs: number = HTTP_LIMITS.downloadIdleMsMax,
): Promise<void> {
  const { notes } = ctx.state;
  ctx.respond = false; // From here on the answer is ours, not Koa's.
  ctx.status = status;
  for (const [name, value] of Object.entries(headers)) ctx.res.setHeader(name, value);
  let bytesSent = 0;
  const stalled = new AbortController();
  const idle = setTimeout(() => stalled.abort(), idleMs);
  const count = async function* (source: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    for await (const chunk of source) {
      yield chunk;
      bytesSent += chunk.length;
      idle.refresh();
    }
  };
  try {
    ctx.res.flushHeaders();
    await pipeline(stream, count, ctx.res, { signal: stalled.signal });
    notes['completed'] = true;
  } catch {
    notes['completed'] = false; // The caller or the host is gone, or one of them stalled.
    ctx.res.destroy();
  } finally {
    clearTimeout(idle);
    notes['bytesSent'] = bytesSent;
  }
}
