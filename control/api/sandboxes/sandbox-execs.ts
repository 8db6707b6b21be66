import { AppError } from '../../../shared/errors.ts';
import { newSandboxId } from '../../../shared/ids.ts';
import type { ExecInSandbox } from '../../../shared/schemas/sandbox-exec.ts';
import type { SandboxExecRecord } from '../../../shared/schemas/sandbox-record.ts';
import type { Deps } from '../../region/deps.ts';
import type { RequestContext } from '../../region/call-disk-host.ts';
import { callOwner, type SandboxOfAccount, waitMsOf } from './sandbox-actions.ts';
import { findSandbox, isUuid } from '../../region/find-sandbox.ts';
import { checkCommand } from '../execs/run-exec.ts';
import { checkEnvironment } from './sandbox-input.ts';

/** A command in a sandbox; stdout and stderr, where they were sent. */
export interface SandboxExecReply {
  readonly exec: SandboxExecRecord;
  readonly output: readonly Buffer[];
}

interface ExecOfSandbox extends SandboxOfAccount {
  readonly execId: string;
}

/**
 * Begins a command in a running sandbox, at most once (docs/api.md, execs of a sandbox).
 * @param input with `wait` the answer comes when the command has ended, if that is soon
 * @throws AppError `bad_request`, `not_found`, `sandbox_not_running`, `rate_limited`,
 *   `unavailable`, `timeout`, `outcome_unknown`
 */
export async function execInSandbox(
  deps: Deps,
  ref: SandboxOfAccount,
  input: ExecInSandbox & { readonly wait: boolean },
  context: RequestContext,
): Promise<SandboxExecReply> {
  const { command, command_tty: hasTerminal = false, env: environment = {}, wait } = input;
  checkCommand(command);
  checkEnvironment(environment);
  const record = await findSandbox(deps, ref.accountId, ref.sandboxId);
  const execId = newSandboxId();
  const payload = {
    ...ref,
    execId,
    command,
    environment,
    hasTerminal,
    ...(input.timeout_seconds === undefined ? {} : { timeoutSeconds: input.timeout_seconds }),
    waitMs: waitMsOf(wait),
  };
  try {
    const job = { kind: 'sandbox.exec' as const, payload };
    const { result, body } = await callOwner(deps, record, job, context);
    return { exec: result.exec, output: body };
  } catch (error) {
    if (!(error instanceof AppError) || error.code !== 'outcome_unknown') throw error;
    // Commands outlive their host's agent: its record will tell.
    throw new AppError(error.code, `${error.message}; if it was, it is exec ${execId}`, {
      cause: error,
    });
  }
}

/** The newest commands of the sandbox in the order of their execution. */
export async function listSandboxExecs(
  deps: Deps,
  ref: SandboxOfAccount,
  context: RequestContext,
): Promise<readonly SandboxExecRecord[]> {
  const record = await findSandbox(deps, ref.accountId, ref.sandboxId);
  const job = { kind: 'sandbox.execs' as const, payload: ref };
  return (await callOwner(deps, record, job, context)).result.execs;
}

/** A command and its kept output. @throws AppError `not_found`, `unavailable` */
export async function getSandboxExec(
  deps: Deps,
  ref: ExecOfSandbox,
  context: RequestContext,
): Promise<SandboxExecReply> {
  const record = await findSandboxOf(deps, ref);
  const job = { kind: 'sandbox.execOutput' as const, payload: ref };
  const { result, body } = await callOwner(deps, record, job, context);
  return { exec: result.exec, output: body };
}

/**
 * Ends a command; one that has ended stays as it is.
 * @throws AppError `not_found`, `unavailable`
 */
export async function cancelSandboxExec(
  deps: Deps,
  ref: ExecOfSandbox,
  context: RequestContext,
): Promise<SandboxExecRecord> {
  const record = await findSandboxOf(deps, ref);
  const job = { kind: 'sandbox.cancelExec' as const, payload: ref };
  return (await callOwner(deps, record, job, context)).result.exec;
}

async function findSandboxOf(deps: Deps, { accountId, sandboxId, execId }: ExecOfSandbox) {
  const record = await findSandbox(deps, accountId, sandboxId);
  if (!isUuid(execId)) throw new AppError('not_found', `exec ${execId} not found`);
  return record;
}
