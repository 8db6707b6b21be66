import type { EgressRules } from '../../../shared/network/egress-rules.ts';

/* Messages between an agent and its egress proxy over the control socket. */

/** The version of this protocol: an agent replaces a proxy that speaks another one. */
export const PROTOCOL_VERSION = 3;

/** Where the names that no rule allows are asked for. */
export interface NamesAddress {
  readonly address: string;
  readonly port: number;
}

/** The only argument that an agent gives its proxy; nothing of it is secret. */
export interface ProxyArguments {
  /** The path of its control socket. */
  readonly control: string;
  /** Where it listens, transparently. */
  readonly port: number;
  /** Where it answers questions for names that are not to be looked up. */
  readonly names: NamesAddress;
  /** The uid that it switches to. */
  readonly uid: number;
}

/** The certificate authority of one sandbox, as PEM. */
export interface AuthorityKeys {
  readonly certificate: string;
  readonly key: string;
}

/** Settings of one slot. */
export interface SlotEgress {
  /** The address that its questions for names come from. */
  readonly asksFrom: string;
  readonly rules: EgressRules;
  /** Undefined when no rule brokers anything. */
  readonly authority?: AuthorityKeys | undefined;
}

/** Settings that all slots of a host share. */
export interface HostEgress {
  /** CIDRs that are always refused. */
  readonly closed: readonly string[];
  /** CIDRs that are refused but for those in `opened`. */
  readonly private: readonly string[];
  readonly opened: readonly string[];
  /** The resolver that the proxy queries: `address` or `address:port`. */
  readonly resolver: string;
  /** Certificates as PEM that servers may be verified with, besides those of the system. */
  readonly trustedCertificates: string;
}

/** Connections, requests and questions with the same decision, counted together. */
export interface ProxyDecision {
  /** When the last of them was, RFC 3339. */
  readonly time: string;
  /** The name that the guest asked for; else the address that it connected to. */
  readonly name?: string;
  readonly address?: string;
  /** Questions for names are of UDP, however they come. */
  readonly protocol: 'tcp' | 'udp';
  readonly port: number;
  readonly allowed: boolean;
  /** The target of a rule as text, `default`, or one of {@link FIXED_RULES}. */
  readonly rule: string;
  readonly count: number;
}

/** The names that decisions show where no rule of the policy decided. */
export const FIXED_RULES = {
  /** No guest reaches the address. */
  closed: 'closed',
  /** The name has no address that the policy lets through. */
  unresolved: 'unresolved',
  /** The connection shows no name, and could be for one that a rule denies or brokers. */
  unnamed: 'unnamed',
} as const;
