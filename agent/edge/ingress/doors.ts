import type { Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { urlToHttpOptions } from 'node:url';
import { beginRequest } from '../../../shared/http/send-request.ts';
import { EDGE_LIMITS } from '../limits.ts';
import { type ClusterTls, partTlsOptions } from '../../../shared/tls/part-connections.ts';
import { connectedSocket } from '../../network/slots/connected-socket.ts';
import { DoorError, toDoorError } from './door-error.ts';
import type { Door, DoorFault, PortRef, ToMain, ToWorker } from './messages.ts';
import { readTunnelFault } from './tunnel-protocol.ts';

interface Waiting {
  resolve(door: Door): void;
  reject(error: Error): void;
}

type Answer = Extract<ToWorker, { readonly kind: 'opened' | 'notOpened' }>;

/** Opens connections to ports of sandboxes, which the main thread makes or knows the way to. */
export class Doors {
  readonly #tell: (message: ToMain) => void;
  readonly #clusterTls: ClusterTls;
  readonly #waiting = new Map<number, Waiting>();
  #lastId = 0;

  constructor(tell: (message: ToMain) => void, clusterTls: ClusterTls) {
    this.#tell = tell;
    this.#clusterTls = clusterTls;
  }

  /**
   * @param mayWake whether a sandbox that is at rest is brought up
   * @throws DoorError
   */
  async open(ref: PortRef, mayWake: boolean): Promise<Socket> {
    for (;;) {
      const door = await this.#ask(ref, mayWake);
      if (door.kind === 'tunnel') return openTunnel(door, mayWake, this.#clusterTls);
      try {
        const socket = await connectedSocket(door.fd, { timeoutMs: EDGE_LIMITS.ingressOpenMsMax });
        return socket.setNoDelay(true);
      } catch (error) {
        const shown = toDoorError(error);
        const mayCome = shown instanceof DoorError && shown.fault === 'nothing_listens';
        if (!mayCome || !door.isFresh) throw shown;
      }
      await sleep(EDGE_LIMITS.ingressAskEveryMs);
    }
  }

  /** Takes the main thread's answer. */
  receive(answer: Answer): void {
    const waiting = this.#waiting.get(answer.id);
    this.#waiting.delete(answer.id);
    if (answer.kind === 'opened') waiting?.resolve(answer.door);
    else waiting?.reject(new DoorError(answer.fault, answer.message));
  }

  #ask(ref: PortRef, mayWake: boolean): Promise<Door> {
    this.#lastId += 1;
    const id = this.#lastId;
    const { promise, resolve, reject } = Promise.withResolvers<Door>();
    this.#waiting.set(id, { resolve, reject });
    this.#tell({ kind: 'open', id, ref, mayWake });
    return promise;
  }
}

/** How long the owner may take to bring the sandbox up, to wait for its service, and to connect. */
const WAKING_MS_MAX =
  EDGE_LIMITS.ingressWakeMsMax + EDGE_LIMITS.ingressServiceMsMax + EDGE_LIMITS.ingressOpenMsMax;

/** @throws DoorError */
function openTunnel(
  { url, headers }: Extract<Door, { kind: 'tunnel' }>,
  mayWake: boolean,
  tls: ClusterTls,
): Promise<Socket> {
  const { promise, resolve, reject } = Promise.withResolvers<Socket>();
  const fail = (fault: DoorFault, cause?: unknown): void =>
    reject(new DoorError(fault, 'the host of the sandbox gave no connection', { cause }));
  // Encryption does not depend on what the directory says.
  const opening = beginRequest(tls !== undefined, {
    ...urlToHttpOptions(new URL(tls === undefined ? url : url.replace(/^http:/u, 'https:'))),
    ...{ headers, agent: false },
    ...partTlsOptions(tls),
  });
  const overdue = setTimeout(
    () => {
      fail('timeout');
      opening.destroy();
    },
    mayWake ? WAKING_MS_MAX : EDGE_LIMITS.ingressOpenMsMax,
  );
  opening.once('upgrade', (_answer, socket: Socket, head: Buffer) => {
    if (head.length > 0) socket.unshift(head);
    socket.setNoDelay(true);
    resolve(socket);
  });
  opening.once('response', (answer) => {
    answer.resume();
    fail(readTunnelFault(answer.headers));
  });
  opening.once('error', (error) => fail('unavailable', error));
  opening.once('close', () => clearTimeout(overdue));
  opening.end();
  promise.catch(() => undefined).finally(() => clearTimeout(overdue));
  return promise;
}
