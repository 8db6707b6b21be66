import { Backoff } from '../../../shared/backoff.ts';
import { isAlive, type ProcessId } from '../../../shared/process-id.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import { SupervisedMachine, type MachineParts } from '../shim/supervised-machine.ts';
import { CONTAINER_LINK } from '../../network/slots/slot-namespace.ts';
import { SocketGuestLink } from '../shim/socket-guest-link.ts';

/** Time between checks for its end: short right after its guest hung up, then ever longer. */
const LOOK_MS = { min: 2, max: 1_000 } as const;

/** A running container, whichever agent started it. */
export class RuncMachine extends SupervisedMachine {
  /** Number of the slot that this agent has linked it to. */
  connectedTo: number | undefined;

  protected readonly link = { name: CONTAINER_LINK, isHostEnd: false };

  constructor(parts: MachineParts, socket: string) {
    super(parts, new SocketGuestLink(socket));
    this.watch();
  }

  protected async shimEnded(shim: ProcessId): Promise<void> {
    const backoff = new Backoff(LOOK_MS);
    let woken = Promise.withResolvers<void>();
    this.guest.on('closed', () => {
      backoff.reset();
      woken.resolve();
    });
    this.detached.addEventListener('abort', () => woken.resolve(), { once: true });
    while (!this.detached.aborted && isAlive(shim)) {
      const isWoken = await settledWithin(woken.promise, backoff.nextMs());
      if (isWoken) woken = Promise.withResolvers();
    }
  }
}
