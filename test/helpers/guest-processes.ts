/* The processes of a sandbox on a real guest agent, whose connection to the host can be cut. */
import type { Duplex } from 'node:stream';
import { SandboxProcesses } from '../../agent/sandboxes/processes/sandbox-processes.ts';
import { createLogger } from '../../shared/log.ts';
import { GuestPort, guestSettings, TestGuest } from './guest.ts';
import { InMemoryGuestLink } from './in-memory-guest-link.ts';

const log = createLogger('test', {});

export interface GuestProcesses extends AsyncDisposable {
  readonly guest: TestGuest;
  readonly port: GuestPort;
  readonly link: InMemoryGuestLink;
  readonly processes: SandboxProcesses;
}

export const newProcesses = (attachedMax = 10): SandboxProcesses =>
  new SandboxProcesses({ sandboxId: 'sandbox', attachedMax, log });

/** @param connect makes each connection of the host */
export async function startProcesses(
  args: readonly string[] = [],
  attachedMax = 10,
  connect = (port: GuestPort): Duplex => port.connect(),
): Promise<GuestProcesses> {
  const guest = await TestGuest.start({ args });
  const port = new GuestPort(guest.socket);
  const link = new InMemoryGuestLink(() => connect(port));
  const processes = newProcesses(attachedMax);
  await link.call(AbortSignal.timeout(10_000), (channel) => channel.configure(guestSettings()));
  processes.connect(link);
  return {
    ...{ guest, port, link, processes },
    async [Symbol.asyncDispose]() {
      link.close();
      await guest[Symbol.asyncDispose]();
    },
  };
}
