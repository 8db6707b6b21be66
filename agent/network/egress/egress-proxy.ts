import { readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { Backoff } from '../../../shared/backoff.ts';
import { runInBackground } from '../../../shared/background.ts';
import { toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import { type EgressRules, isKnownToProxy } from '../../../shared/network/egress-rules.ts';
import { SerialQueue } from '../../system/queues/serial-queue.ts';
import { EgressClient } from './egress-client.ts';
import {
  type AuthorityKeys,
  type HostEgress,
  PROTOCOL_VERSION,
  type ProxyDecision,
  type SlotEgress,
} from './egress-settings.ts';
import { readHostKey } from './host-key.ts';
import { endProxy, type ProxySpec, startProxy } from './start-proxy.ts';

const READY_MS_MAX = 20_000;
const POLL_MS = 20;
const RESTART_MS = { min: 100, max: 10_000 } as const;

/** A slot, as far as the proxy is concerned. */
interface ProxiedSlot {
  /** The slot's second address, from which its connections reach the proxy. */
  readonly proxiedAddress: string;
  /** The first, from which its questions for names do. */
  readonly address: string;
}

export interface EgressProxyOptions {
  readonly proxy: ProxySpec;
  readonly settings: HostEgress;
  /** The file of the key that sandboxes' authorities follow from. */
  readonly keyPath: string;
  /** Slots that sandboxes of a former agent hold. */
  readonly leased: readonly ProxiedSlot[];
  readonly log: Logger;
}

/** Whether rules need a certificate authority that the guest trusts. */
const doesBroker = ({ allow }: EgressRules): boolean =>
  allow.some(({ brokering }) => brokering !== undefined);

/**
 * The egress proxy of this host: a process of its own that goes on without the agent, as machines
 * do. It is started when the first slot needs it, taken over by the next agent, and started again
 * with all rules when it fails.
 */
export class EgressProxy {
  readonly #options: EgressProxyOptions;
  readonly #client: EgressClient;
  readonly #hostKey: Buffer;
  /** By address; undefined for those of a former agent until their rules are told again. */
  readonly #slots = new Map<string, SlotEgress | undefined>();
  /** Starts, and changes of rules, happen one after the other. */
  readonly #changes = new SerialQueue();
  readonly #closing = new AbortController();
  readonly #restarts = new Backoff(RESTART_MS);
  #isRunning = false;

  private constructor(options: EgressProxyOptions, hostKey: Buffer) {
    this.#options = options;
    this.#hostKey = hostKey;
    this.#client = new EgressClient(options.proxy.control);
  }

  /** Takes over the proxy that a former agent started, if there is one. */
  static async open(options: EgressProxyOptions): Promise<EgressProxy> {
    const proxy = new EgressProxy(options, await readHostKey(options.keyPath));
    await proxy.#changes.add(() => proxy.#takeOver());
    return proxy;
  }

  /**
   * Has these rules count for new connections, requests and questions of the slot from now on. Does
   * nothing for rules without names while the slot is not known here.
   * @throws Error when the proxy cannot be started; the former rules may count then
   */
  async setRules(
    { proxiedAddress, address: asksFrom }: ProxiedSlot,
    sandboxId: string,
    rules: EgressRules,
  ): Promise<void> {
    const authority = doesBroker(rules) ? await this.#authorityOf(sandboxId) : undefined;
    const egress = { asksFrom, rules, authority };
    await this.#changes.add(async () => {
      if (!isKnownToProxy(rules) && !this.#slots.has(proxiedAddress)) return;
      this.#slots.set(proxiedAddress, egress);
      if (this.#isRunning && (await this.#isReady().catch(() => false))) {
        await this.#client.call('PUT', `/slots/${proxiedAddress}`, egress);
      } else {
        await this.#start();
      }
    });
  }

  /** Ends the slot's connections through the proxy. */
  async removeRules({ proxiedAddress }: ProxiedSlot): Promise<void> {
    await this.#changes.add(async () => {
      this.#slots.delete(proxiedAddress);
      if (this.#isRunning) await this.#client.call('DELETE', `/slots/${proxiedAddress}`);
    });
  }

  /** The proxy's decisions about the slot's connections, newest first. */
  async decisions({ proxiedAddress }: ProxiedSlot): Promise<ProxyDecision[]> {
    if (!this.#isRunning) return [];
    const decisions = await this.#client.call('GET', `/slots/${proxiedAddress}/decisions`);
    return decisions as ProxyDecision[];
  }

  /**
   * Resolves when no request of the slot to these hosts is under way.
   * @param patterns host names in lower case, with `*` for any run of characters
   * @throws Error when the signal aborts it or the proxy does not answer
   */
  async drained(
    { proxiedAddress }: ProxiedSlot,
    patterns: readonly string[],
    signal: AbortSignal,
  ): Promise<void> {
    if (!this.#isRunning) return;
    await this.#client.call('POST', `/slots/${proxiedAddress}/drained`, { patterns }, signal);
  }

  /** The certificate, as PEM, of the authority that a sandbox's guest is to trust. */
  async certificate(sandboxId: string): Promise<string> {
    return (await this.#authorityOf(sandboxId)).certificate;
  }

  /** Leaves the proxy to the next agent, or ends it when no slot needs it. */
  async close(): Promise<void> {
    this.#closing.abort();
    await this.#changes.idle;
    const slots = (await this.#client.call('GET', '/slots').catch(() => [])) as string[];
    if (slots.length === 0) await endProxy(this.#options.proxy);
  }

  /** Loads what makes certificates with the first sandbox that brokers: most hosts have none. */
  async #authorityOf(sandboxId: string): Promise<AuthorityKeys> {
    const { authorityOf } = await import('./authority.ts');
    return authorityOf(this.#hostKey, sandboxId);
  }

  async #takeOver(): Promise<void> {
    const { leased, settings, proxy } = this.#options;
    const isOurs = await this.#isReady().catch(() => false);
    if (!isOurs) return endProxy(proxy);
    const kept = new Set(leased.map(({ proxiedAddress }) => proxiedAddress));
    const slots = (await this.#client.call('GET', '/slots')) as string[];
    const gone = slots.filter((address) => !kept.has(address));
    for (const address of gone) await this.#client.call('DELETE', `/slots/${address}`);
    for (const address of slots) if (kept.has(address)) this.#slots.set(address, undefined);
    await this.#client.call('PUT', '/host', settings);
    this.#watch();
  }

  async #isReady(): Promise<boolean> {
    const answer = (await this.#client.call('GET', '/version')) as { version: number };
    return answer.version === PROTOCOL_VERSION;
  }

  /** Starts a proxy with the rules of all slots. */
  async #start(): Promise<void> {
    const { proxy, settings } = this.#options;
    await endProxy(proxy);
    const hasEnded = await startProxy(proxy);
    await this.#untilReady(hasEnded);
    await this.#client.call('PUT', '/host', settings);
    for (const [address, egress] of this.#slots) {
      if (egress === undefined) continue;
      await this.#client.call('PUT', `/slots/${address}`, egress);
    }
    this.#watch();
  }

  async #untilReady(hasEnded: () => boolean): Promise<void> {
    const deadline = performance.now() + READY_MS_MAX;
    while (!(await this.#isReady().catch(() => false))) {
      const { errorLog } = this.#options.proxy;
      if (hasEnded()) {
        const words = await readFile(errorLog, 'utf8').catch(() => '');
        throw new Error(`the egress proxy did not start: ${words.trim().slice(-500)}`);
      }
      if (performance.now() > deadline) throw new Error('the egress proxy does not answer');
      await sleep(POLL_MS);
    }
  }

  /** Starts the proxy again when it ends. */
  #watch(): void {
    this.#isRunning = true;
    runInBackground('egress.watch', async () => {
      const beganAt = performance.now();
      await this.#client.watch(this.#closing.signal).catch(() => undefined);
      this.#isRunning = false;
      if (this.#closing.signal.aborted) return;
      this.#options.log.error('egress:ended');
      if (performance.now() - beganAt > RESTART_MS.max) this.#restarts.reset();
      await this.#restart();
    });
  }

  async #restart(): Promise<void> {
    const { signal } = this.#closing;
    while (!signal.aborted) {
      await this.#restarts.pause({ signal, ref: false });
      try {
        return await this.#changes.add(async () => {
          if (!this.#isRunning && this.#slots.size > 0 && !signal.aborted) await this.#start();
        });
      } catch (error) {
        this.#options.log.error({ err: toError(error) }, 'egress:startFailed');
      }
    }
  }
}
