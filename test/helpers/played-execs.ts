import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { GuestChannel } from '../../agent/machines/guest-link/guest-channel.ts';
import { GuestLink } from '../../agent/machines/guest-link/guest-link.ts';
import type { GuestProcessRecord } from '../../agent/machines/guest-link/guest-protocol.ts';
import { Journal } from '../../agent/system/journal/journal.ts';
import { SandboxExecs, type SandboxExecSpec } from '../../agent/sandboxes/execs/sandbox-execs.ts';
import { onAnyThread } from '../../agent/sandboxes/execs/shared-threads.ts';
import { createLogger } from '../../shared/log.ts';
import { orderly, PlayedGuest } from './played-guest.ts';
import { newSandbox } from './sandbox-records.ts';
import { temporaryDirectory } from './temporary.ts';

/** A link whose channels lead to guests that the test plays. */
class PlayedLink extends GuestLink {
  channel: GuestChannel | undefined;
  processes: readonly GuestProcessRecord[] = [];

  /** A new epoch with this guest. */
  async open(guest: PlayedGuest): Promise<void> {
    const { channel, processes } = await GuestChannel.open(guest.theirs);
    this.channel = channel;
    this.processes = processes;
    this.emit('opened', channel, processes);
  }

  /** The channel breaks; the next one can be opened. */
  break(): void {
    this.channel?.close();
    this.channel = undefined;
  }
}

/** A command without a time limit. */
export const spec = (command: string): SandboxExecSpec => ({
  id: randomUUID(),
  command,
  environment: {},
  hasTerminal: false,
  timeoutSeconds: undefined,
});

/** A journal with one sandbox that may run two commands at once. */
export async function openExecs() {
  const directory = await temporaryDirectory();
  const journalPath = join(directory.path, 'journal.sqlite');
  const journal = await Journal.open(journalPath);
  const output = join(directory.path, 'output');
  const row = newSandbox();
  await journal.sandboxes.insert(row);
  const parts = { journal: journal.sandboxes, log: createLogger('test', {}) };
  const execs = new SandboxExecs(row.id, 2, {
    outputs: () => ({ directory: output, onThread: onAnyThread }),
    ...parts,
  });
  const link = new PlayedLink();
  await link.open(new PlayedGuest(orderly));
  execs.attach(link);
  return {
    execs,
    link,
    journal: journal.sandboxes,
    journalPath,
    sandboxId: row.id,
    /** Where the output of its commands lies. */
    output,
    async [Symbol.asyncDispose]() {
      link.close();
      await execs.detach();
      await journal.close();
      await directory[Symbol.asyncDispose]();
    },
  };
}
