import type { Socket } from 'node:net';
import type { SecureContext } from 'node:tls';
import type { AddressGuard } from './address-guard.ts';
import { Decisions } from './decisions.ts';
import type { ProxyDecision, SlotEgress } from './egress-settings.ts';
import { type Destination, findForwardAddresses, findRoute, type Route } from './find-route.ts';
import { Flights } from './flights.ts';
import { LeafCertificates } from './leaf-certificates.ts';
import { PROXY_LIMITS } from './limits.ts';
import { type Names, NamesOfSlot, type Resolver } from './resolver.ts';
import { type Secrets, SecretsOfRules } from './secrets.ts';
import { UpstreamAgents } from './upstream-agents.ts';
import { type Brokering, isByName } from '../../../shared/network/egress-rules.ts';
import { matchesName } from '../../../shared/network/egress-target.ts';

const DNS_PORT = 53;

/** Parts that the slots of a host share. */
export interface HostParts {
  readonly guard: AddressGuard;
  readonly resolver: Resolver;
  /** The certificates that servers are verified with. */
  readonly trust: SecureContext;
}

/** The proxy's knowledge of one slot, and the slot's connections. */
export class Slot {
  readonly #decisions = new Decisions();
  /** Apart, because a guest can ask for any number of names. */
  readonly #refusedNames = new Decisions(PROXY_LIMITS.refusedNamesMax);
  readonly flights = new Flights();
  readonly connections = new Set<Socket>();
  #egress: SlotEgress;
  #parts: HostParts;
  #leaves: LeafCertificates | undefined;
  #secrets = new SecretsOfRules();
  #names: Names;
  #upstream: UpstreamAgents;

  constructor(egress: SlotEgress, parts: HostParts) {
    this.#egress = egress;
    this.#parts = parts;
    this.#names = new NamesOfSlot(parts.resolver);
    this.#leaves = newLeaves(egress);
    this.#upstream = new UpstreamAgents(parts.trust);
  }

  /** For connections and requests from now on. */
  update(egress: SlotEgress, parts: HostParts): void {
    if (egress.authority?.key !== this.#egress.authority?.key) this.#leaves = newLeaves(egress);
    this.#egress = egress;
    if (parts.resolver !== this.#parts.resolver) this.#names = new NamesOfSlot(parts.resolver);
    this.#parts = parts;
    this.#secrets = new SecretsOfRules();
    this.#upstream.retire();
    this.#upstream = new UpstreamAgents(parts.trust);
  }

  get asksFrom(): string {
    return this.#egress.asksFrom;
  }

  /** Connections to servers for the next requests. */
  get upstream(): UpstreamAgents {
    return this.#upstream;
  }

  /** The same, without any that was used before. */
  newUpstream(): UpstreamAgents {
    return new UpstreamAgents(this.#parts.trust);
  }

  /** Undefined when no rule brokers anything. */
  get leaves(): LeafCertificates | undefined {
    return this.#leaves;
  }

  /** How long a client may say nothing before its connection is judged without a name. */
  get firstByteMs(): number {
    const { allow, deny } = this.#egress.rules;
    const { named, unnamed } = PROXY_LIMITS.firstByteMs;
    return [...allow, ...deny].some(isByName) ? named : unnamed;
  }

  /** The decisions about connections and names, each newest first. */
  get decisions(): ProxyDecision[] {
    return [...this.#decisions.list(), ...this.#refusedNames.list()];
  }

  /** Counts a question for a name that is not looked up. */
  refuseName(name: string): void {
    const denied = this.#egress.rules.deny.find(({ target }) => matchesName(target, name));
    const rule = denied?.text ?? 'default';
    this.#refusedNames.add({ name, protocol: 'udp', port: DNS_PORT, allowed: false, rule });
  }

  secretsOf(brokering: Brokering): Secrets {
    return this.#secrets.of(brokering);
  }

  /** @throws Error when no resolver answers */
  judge(destination: Destination): Promise<Route> {
    const { rules } = this.#egress;
    return findRoute({ guard: this.#parts.guard, resolver: this.#names, rules }, destination);
  }

  /** Judges a destination, and remembers the decision. @throws Error when no resolver answers */
  async route(destination: Destination, port: number): Promise<Route> {
    const route = await this.judge(destination);
    const { name, address } = destination;
    const host = name === undefined ? { address } : { name };
    const allowed = route.addresses.length > 0;
    this.#decisions.add({ ...host, protocol: 'tcp', port, allowed, rule: route.rule });
    return route;
  }

  forwardAddresses(host: string, isAddress: boolean): Promise<string[]> {
    const { guard } = this.#parts;
    return findForwardAddresses({ guard, resolver: this.#names }, host, isAddress);
  }

  /** Ends everything of the slot. */
  close(): void {
    for (const socket of this.connections) socket.destroy();
    this.#upstream.close();
  }
}

const newLeaves = ({ authority }: SlotEgress): LeafCertificates | undefined =>
  authority === undefined ? undefined : new LeafCertificates(authority);
