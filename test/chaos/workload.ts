import type { ApiClient } from '../helpers/api.ts';
import { waitFor } from '../helpers/wait.ts';
import { attempt } from './attempt.ts';
import type { Findings } from './findings.ts';
import type { Random } from '../helpers/random.ts';

/** The context of every workload. */
export interface WorkloadContext {
  readonly api: ApiClient;
  readonly findings: Findings;
  readonly random: Random;
  /** Only what a command has synced is promised. */
  readonly needsSync: boolean;
}

/** Uses the system while parts of it fail, and remembers what it was promised. */
export interface Workload {
  /** Runs until it is told to stop; resolves after the call that was under way. */
  run(over: AbortSignal): Promise<void>;
  /** Compares what was promised with what is there. Call it when everything works again. */
  check(): Promise<void>;
}

const RECOVERS_WITHIN_MS = 90_000;

/**
 * A call that must succeed now that nothing is broken, repeated meanwhile.
 * @throws Error when it does not
 */
export async function succeed<T>(
  { api, findings }: WorkloadContext,
  request: readonly [method: string, path: string],
  options: Parameters<typeof attempt>[3] = {},
): Promise<T> {
  let last = '';
  try {
    return await waitFor(
      request.join(' '),
      async () => {
        const { code, data } = await attempt(findings, api, request, options);
        last = code;
        return code === 'ok' && { data: data as T };
      },
      RECOVERS_WITHIN_MS,
    ).then(({ data }) => data);
  } catch (cause) {
    throw new Error(`${request.join(' ')} still answers ${last}`, { cause });
  }
}
