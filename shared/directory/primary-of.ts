import type { SentinelConnector } from 'ioredis';

/** A connection to a server of Redis. */
export type Stream = Awaited<ReturnType<SentinelConnector['connect']>>;

/** The run id of the server behind each connection to a primary that may fail over. */
const runIds = new WeakMap<Stream, string>();

/** Records what a server has said of itself on a connection. */
export function noteRunId(stream: Stream, runId: string | undefined): void {
  if (runId !== undefined) runIds.set(stream, runId);
}

/**
 * Which server is the primary to this connection, by its run id; undefined where Redis does not
 * fail over. Two connections that name the same one write to one and the same history.
 */
export const primaryOf = ({ stream }: { readonly stream: Stream }): string | undefined =>
  runIds.get(stream);
