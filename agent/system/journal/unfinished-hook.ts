import type { HookResult } from '../../../shared/schemas/sandbox-record.ts';
import type { SandboxRow } from './sandbox-journal.ts';

/** The result of a hook whose end nobody saw. */
export const INTERRUPTED: HookResult = {
  status: 'interrupted',
  message: 'its machine or the agent of its host ended before it did',
};

/** The change to a sandbox whose memory is lost: a hook that has not ended never will. */
export const withoutHook = ({ hook }: Pick<SandboxRow, 'hook'>): Partial<SandboxRow> =>
  hook?.status === 'pending' || hook?.status === 'running' ? { hook: INTERRUPTED } : {};
