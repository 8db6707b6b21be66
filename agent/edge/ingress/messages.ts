import type { TransferLimits } from '../../../shared/http/stall-clock.ts';
import type { LogSettings } from '../../../shared/log.ts';
import type { CertificatePaths } from '../../../shared/tls/certificates.ts';
import type { RedisTarget } from '../../../shared/tls/redis-tls.ts';

/* Messages between the agent's main thread and the threads of its ingress. */

/** A port of a sandbox, and whose it is. */
export interface PortRef {
  readonly accountId: string;
  readonly sandboxId: string;
  /** The sandbox's owner. */
  readonly hostId: string;
  readonly port: number;
}

/** Given to each thread at its start. */
export interface IngressWorkerData {
  readonly log: LogSettings;
  readonly hostId: string;
  readonly region: string;
  readonly redis: RedisTarget;
  readonly zone: string;
  readonly host: string;
  readonly port: number;
  readonly tls: CertificatePaths | undefined;
  /** For tunnels to other hosts. */
  readonly clusterTls: CertificatePaths | undefined;
  /** How long a guest may take to begin its answer. */
  readonly answerMs: number;
  readonly connections: {
    readonly max: number;
    readonly perAddressMax: number;
    readonly proxies: readonly string[];
    readonly transfers: TransferLimits;
  };
  /** Addresses and CIDR blocks of proxies whose `X-Forwarded-For` and `-Proto` are believed. */
  readonly trustedProxies: readonly string[];
}

/** Why there is no connection to a port. */
export type DoorFault =
  | 'nothing_listens'
  /** No such sandbox is here. */
  | 'not_found'
  /** The request must not wake the sandbox. */
  | 'not_running'
  /** The sandbox could not be resumed, or its host cannot be reached, for now. */
  | 'unavailable'
  /** The sandbox did not start, or did not take the connection, in time. */
  | 'timeout';

/** A connection of this process into a sandbox's network, or the way to one of its owner's. */
export type Door =
  | {
      readonly kind: 'local';
      /** The descriptor of a socket whose connect(2) is under way. */
      readonly fd: number;
      /** The sandbox was brought up just now: its services may still start. */
      readonly isFresh: boolean;
    }
  | {
      readonly kind: 'tunnel';
      readonly url: string;
      readonly headers: Readonly<Record<string, string>>;
    };

export type ToMain =
  | { readonly kind: 'listening' }
  | { readonly kind: 'open'; readonly id: number; readonly ref: PortRef; readonly mayWake: boolean }
  /** A request waits for the guest's answer: kept connections of any thread may be the reason. */
  | { readonly kind: 'waits'; readonly ref: PortRef }
  /** Requests to the sandbox are under way, or no more. */
  | {
      readonly kind: 'use';
      readonly ref: Pick<PortRef, 'accountId' | 'sandboxId'>;
      readonly inUse: boolean;
    }
  | {
      readonly kind: 'counts';
      readonly connections: number;
      readonly answers: Record<string, number>;
    }
  | { readonly kind: 'closed' };

export type ToWorker =
  | { readonly kind: 'opened'; readonly id: number; readonly door: Door }
  | {
      readonly kind: 'notOpened';
      readonly id: number;
      readonly fault: DoorFault;
      readonly message: string;
    }
  /** The sandbox runs no longer: its connections are worth nothing. */
  | { readonly kind: 'left'; readonly sandboxId: string }
  /** Connections to the port are not to be kept for further requests. */
  | { readonly kind: 'retire'; readonly ref: PortRef }
  | { readonly kind: 'close' };
