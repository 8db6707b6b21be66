import type { Redis } from 'ioredis';
import type { Logger } from '../../shared/log.ts';
import { Cancellations } from './cancellations.ts';
import { OwnApi, type ServeApi } from './own-api.ts';

/** Parts of this node that tools for language models use. Nothing is opened before it is used. */
export interface McpHost {
  readonly ownApi: OwnApi;
  readonly cancellations: Cancellations;
  close(): Promise<void>;
}

/** @param serve serves the API on a free port of the loopback address */
export function openMcp(redis: Redis, region: string, log: Logger, serve: ServeApi): McpHost {
  const ownApi = new OwnApi(serve);
  const cancellations = new Cancellations(redis, region, log);
  return {
    ownApi,
    cancellations,
    async close() {
      cancellations.close();
      await ownApi.close();
    },
  };
}
