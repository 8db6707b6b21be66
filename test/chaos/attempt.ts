import assert from 'node:assert';
import type { ApiBody, ApiClient } from '../helpers/api.ts';
import type { Findings } from './findings.ts';

/**
 * Longer than the system takes for any answer, frozen parts included. The longest is that to a
 * repeated `Idempotency-Key` whose first call was cut off: 60 s and the time of the command.
 */
export const HANGS_AFTER_MS = 110_000;

export interface Attempt {
  /** The HTTP status, 0 when there was no answer. */
  readonly status: number;
  /** The error code; `ok` on success, `cut` when the connection broke before the answer. */
  readonly code: string;
  readonly data: unknown;
}

/** Codes that a fault can explain. Any other failure is a defect of the system. */
const HONEST = new Set([
  'cut',
  'unavailable',
  'no_capacity',
  'runtime_retryable',
  'disk_moved',
  'host_full',
  'directory_full',
  'disk_in_use',
  'outcome_unknown',
  'timeout',
]);

/** Codes that the state of a sandbox explains; a machine that was killed is in any state. */
export const STATES = [
  'sandbox_not_running',
  'sandbox_start_conflict',
  'sandbox_pausing',
  'sandbox_stopping',
  'sandbox_terminated',
  'sandbox_not_stopped',
  'sandbox_has_forks',
  'sandbox_name_conflict',
  'rate_limited',
];

/**
 * Calls the API once, whatever the outcome. A call without an answer, an answer that is not in the
 * description, and a code that the fault does not explain are findings.
 * @param expected codes of failures that the call itself explains
 * @param over hangs up
 */
export async function attempt(
  findings: Findings,
  api: ApiClient,
  [method, path]: readonly [method: string, path: string],
  {
    body,
    headers = {},
    expected = [],
    over,
  }: {
    body?: unknown;
    headers?: Record<string, string>;
    expected?: readonly string[];
    over?: AbortSignal;
  } = {},
): Promise<Attempt> {
  const late = AbortSignal.timeout(HANGS_AFTER_MS);
  const signal = over === undefined ? late : AbortSignal.any([late, over]);
  const call = `${method} ${path}`;
  try {
    const reply = await api.call<ApiBody | ''>(method, path, body, headers, signal);
    const { status, body: answer } = reply;
    if (answer === '' || answer.success) {
      return { status, code: 'ok', data: answer === '' ? undefined : answer.data };
    }
    if (answer.code === undefined) return cut(findings); // A proxy's, whose node died.
    const { code, error } = answer;
    findings.count(`answer ${status} ${code}`);
    const isExplained =
      HONEST.has(code) ||
      expected.includes(code) ||
      (code === 'internal_server_error' && findings.explainsInternalErrors);
    if (!isExplained) {
      findings.report(`${call} answered ${status} ${code}: ${error}`);
    }
    return { status, code, data: undefined };
  } catch (error) {
    if (error instanceof assert.AssertionError) {
      findings.report(`undocumented answer: ${error.message}`);
    } else if (late.aborted) {
      findings.report(`${call} had no answer within ${HANGS_AFTER_MS} ms`);
    }
    return cut(findings);
  }
}

function cut(findings: Findings): Attempt {
  findings.count('answer cut');
  return { status: 0, code: 'cut', data: undefined };
}
