import {
  type SandboxAction,
  sandboxStates,
  type SandboxStatus,
  statusOfState,
  verdictOn,
} from '../../../../shared/sandbox-lifecycle.ts';

export type { SandboxAction, SandboxStatus };

/**
 * Whether an action does something in a state, by the table that the server obeys. A status may
 * stand for several states: then one of them must let it.
 */
export const isPossible = (status: SandboxStatus, action: SandboxAction): boolean =>
  sandboxStates
    .filter((state) => statusOfState(state) === status)
    .some((state) => ['begin', 'allow'].includes(verdictOn(state, action).kind));
