import { readFileSync } from 'node:fs';
import type { ConnectionOptions } from 'node:tls';

/** Files in PEM; undefined: the system's authorities, and no certificate of our own. */
export interface RedisTlsPaths {
  readonly caPath: string | undefined;
  readonly certPath: string | undefined;
  readonly keyPath: string | undefined;
}

/** A single Redis at a known address. */
interface SingleRedis {
  /** `redis://` or `rediss://`. */
  readonly url: string;
  readonly tls?: RedisTlsPaths | undefined;
}

/** Whichever Redis the Sentinels say is the primary. */
export interface SentinelRedis {
  readonly sentinels: readonly { readonly host: string; readonly port: number }[];
  /** The Sentinels' name for the primary. */
  readonly name: string;
  readonly username: string | undefined;
  readonly password: string | undefined;
  readonly sentinelPassword: string | undefined;
  /** Undefined: no TLS. */
  readonly tls: RedisTlsPaths | undefined;
}

/** A Redis Cluster: several primaries, each with replicas, that share the keys by hash slots. */
export interface ClusteredRedis {
  /** Some of its nodes; they tell of the others. */
  readonly nodes: readonly { readonly host: string; readonly port: number }[];
  readonly username: string | undefined;
  readonly password: string | undefined;
  /** Undefined: no TLS. */
  readonly tls: RedisTlsPaths | undefined;
}

/** A Redis with one primary, of which each connection is to that one. */
export type RedisWithOnePrimary = SingleRedis | SentinelRedis;

/** Where Redis is. */
export type RedisTarget = RedisWithOnePrimary | ClusteredRedis;

/** The file's text as it is now; as it was when it cannot be read. */
function currentText(path: string | undefined): () => string | undefined {
  let text: string | undefined;
  return () => {
    if (path === undefined) return undefined;
    try {
      text = readFileSync(path, 'utf8');
    } catch (error) {
      if (text === undefined) throw error;
    }
    return text;
  };
}

/**
 * TLS options for ioredis, which copies them at each attempt to connect: the getters read the files
 * anew each time, so a replaced certificate is used from the next connection on.
 * @throws Error when a file cannot be read
 */
export function redisTlsOptions(paths: RedisTlsPaths | undefined): ConnectionOptions {
  const [ca, cert, key] = [paths?.caPath, paths?.certPath, paths?.keyPath].map(currentText);
  for (const read of [ca, cert, key]) read?.();
  return {
    get ca() {
      return ca?.();
    },
    get cert() {
      return cert?.();
    },
    get key() {
      return key?.();
    },
  };
}
