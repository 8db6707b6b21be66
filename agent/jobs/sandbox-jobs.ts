import { AppError } from '../../shared/errors.ts';
import type { JobEnvelope, SandboxJobKind } from '../../shared/jobs.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import type { SandboxRegistry } from '../sandboxes/sandbox-registry.ts';

/** What a job of sandboxes comes to: its result, and bytes beside it. */
export interface SandboxAnswer {
  readonly result: object;
  readonly body: readonly Buffer[];
}

type Handlers = {
  readonly [K in SandboxJobKind]: (job: JobEnvelope<K>['payload']) => Promise<SandboxAnswer>;
};

const answer = (result: object, body: readonly Buffer[] = []): SandboxAnswer => ({ result, body });

/** Turns the jobs of this host's sandboxes into messages to their actors. */
export class SandboxJobs {
  readonly #handlers: Handlers;
  #isDraining = false;

  constructor(registry: SandboxRegistry) {
    this.#handlers = {
      'sandbox.create': async ({ sandboxId, accountId, environment, waitMs, ...config }) => {
        const actor = await registry.create({ id: sandboxId, accountId, config, environment });
        await actor.settled(waitMs);
        return answer({ sandbox: actor.record });
      },
      'sandbox.command': async ({ command, waitMs, ...ref }) => {
        const actor = registry.find(ref);
        await actor[command]();
        await actor.settled(waitMs);
        return answer({ sandbox: actor.record });
      },
      'sandbox.delete': async (ref) => {
        const dependentForks = await registry.delete(ref);
        return answer(dependentForks === undefined ? {} : { dependentForks });
      },
      'sandbox.fork': async ({ childId, name, checkpoint, waitMs, ...ref }) => {
        const child = await registry.fork(ref, { id: childId, name, checkpoint });
        await child.settled(waitMs);
        return answer({ sandbox: child.record });
      },
      'sandbox.setLimits': async ({ timeoutSeconds, idleTtlSeconds, ...ref }) => {
        const actor = registry.find(ref);
        await actor.setLimits({ timeoutSeconds, idleTtlSeconds });
        return answer({ sandbox: actor.record });
      },
      'sandbox.discard': async (ref) => {
        await registry.discard(ref);
        return answer({});
      },
      'sandbox.exec': async ({ execId: id, waitMs, ...spec }) => {
        const { command, environment, hasTerminal, timeoutSeconds } = spec;
        const beganAt = performance.now();
        const actor = registry.find(spec);
        const begun = { id, command, environment, hasTerminal, timeoutSeconds };
        const { ended } = await actor.exec(begun);
        // A guest that answers slowly has used up some of it.
        const leftMs = waitMs - (performance.now() - beganAt);
        if (leftMs > 0) await settledWithin(ended, leftMs);
        const { exec, stdout, stderr } = await actor.readExec(id);
        return answer({ exec }, [stdout, stderr]);
      },
      'sandbox.execs': async (ref) => answer({ execs: await registry.find(ref).execs() }),
      'sandbox.execOutput': async ({ execId, ...ref }) => {
        const { exec, stdout, stderr } = await registry.find(ref).readExec(execId);
        return answer({ exec }, [stdout, stderr]);
      },
      'sandbox.cancelExec': async ({ execId, ...ref }) => {
        return answer({ exec: await registry.find(ref).cancelExec(execId) });
      },
    };
  }

  /** New work is refused from here on. */
  drain(): void {
    this.#isDraining = true;
  }

  /** @throws AppError what the job comes to */
  async handle({ kind, payload }: JobEnvelope<SandboxJobKind>): Promise<SandboxAnswer> {
    // What is taken back must be, whenever: nobody asks for it again.
    if (this.#isDraining && kind !== 'sandbox.discard')
      throw new AppError('unavailable', 'the host is shutting down; try again');
    // The compiler does not see that kind and payload belong together.
    const handler = this.#handlers[kind] as (job: unknown) => Promise<SandboxAnswer>;
    return handler(payload);
  }
}
