import { Cancellations, type CancellationsOptions } from './cancellations.ts';
import { OwnApi, type ServeApi } from './own-api.ts';

/** Parts of this node that tools for language models use. Nothing is opened before it is used. */
export interface McpHost {
  readonly ownApi: OwnApi;
  readonly cancellations: Cancellations;
  close(): Promise<void>;
}

interface McpOptions extends CancellationsOptions {
  /** Serves the API on a free port of the loopback address. */
  readonly serve: ServeApi;
}

export function openMcp({ serve, ...options }: McpOptions): McpHost {
  const ownApi = new OwnApi(serve);
  const cancellations = new Cancellations(options);
  return {
    ownApi,
    cancellations,
    async close() {
      cancellations.close();
      await ownApi.close();
    },
  };
}
