import { createHash } from 'node:crypto';
import { access, mkdir, stat } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import Type, { type Static } from 'typebox';
import { runInBackground } from '../../../../shared/background.ts';
import { toError } from '../../../../shared/errors.ts';
import type { Logger } from '../../../../shared/log.ts';
import { hostBootId } from '../../../../shared/process-id.ts';
import {
  type Accelerator,
  type AcceleratorChoice,
  acceleratorReasons,
  accelerators,
} from '../../../../shared/schemas/host.ts';
import { settledWithin } from '../../../../shared/settled-within.ts';
import { compile } from '../../../../shared/validate.ts';
import { readConsole, runPaths } from '../../shim/shim-files.ts';
import { readRecord } from '../../../system/read-record.ts';
import { run } from '../../../system/spawn.ts';
import { writeDurably } from '../../../system/write-durably.ts';
import { bootOnce, clearMachine } from './boot-once.ts';
import { hostArchitecture, type Launch, type VmHost } from './launch.ts';
import { machinePaths } from './machine-directory.ts';
import { qemuProgram } from './qemu-arguments.ts';

const PROBE_MIB = 256;
const NAME = 'probe';
const ANSWER_FILE = 'accelerator.json';
const PRINTED_LENGTH_MAX = 2000;
const WATCH_MS = 100;
/** A time-out may have been the host's own load: one more guest is tried. */
const TRIES_MAX = 2;

export interface ProbeLimits {
  /** Limit of the whole boot, which takes many times longer on a busy host. */
  readonly bootMs: number;
  /** After the last byte on the guest's console; ten times as long as a boot under KVM takes. */
  readonly silenceMs: number;
  /** How long the start of the agent waits for an answer. */
  readonly startMs: number;
  /** Time from a time-out to the second try. */
  readonly retryMs: number;
  /** Between two looks for a device that is not there. */
  readonly lookMs: number;
}

const LIMITS: ProbeLimits = {
  ...{ bootMs: 60_000, silenceMs: 10_000, startMs: 10_000, retryMs: 600_000, lookMs: 30_000 },
};

export interface ProbeOptions {
  readonly host: VmHost;
  /** Holds the recorded answer, and the probe's machine while it runs. */
  readonly directory: string;
  readonly uid: number;
  readonly log: Logger;
  /** The accelerator that is tried, the device that it needs, and the limits; tests have others. */
  readonly tried?: Accelerator;
  readonly device?: string;
  readonly limits?: ProbeLimits;
}

const Answer = Type.Object({
  key: Type.String(),
  accelerator: Type.Enum([...accelerators]),
  /** Earlier versions kept neither these, nor what QEMU said. */
  reason: Type.Optional(Type.Enum([...acceleratorReasons])),
  tries: Type.Optional(Type.Integer()),
  triedAtMs: Type.Optional(Type.Integer()),
});
type Answer = Static<typeof Answer>;
const parseAnswer = compile(Answer);

const choiceOf = ({ accelerator, reason }: Answer): AcceleratorChoice => ({
  accelerator,
  reason: reason ?? (accelerator === 'kvm' ? 'booted' : 'timed_out'),
});

const readAnswer = (directory: string): Promise<Answer | undefined> =>
  readRecord(join(directory, ANSWER_FILE), parseAnswer).catch(() => undefined);

/** The choice that an agent has made after a probe; undefined without one. */
export async function readChoice(directory: string): Promise<AcceleratorChoice | undefined> {
  const answer = await readAnswer(directory);
  return answer && choiceOf(answer);
}

/** A hash of everything that the answer depends on. */
async function probeKey(guestDir: string): Promise<string> {
  const version = await run(qemuProgram(hostArchitecture), ['--version']);
  const parts = [hostBootId(), version, basename(guestDir)];
  return createHash('sha256').update(parts.join('\n')).digest('hex');
}

class ProbeTimeoutError extends Error {}

/** @throws ProbeTimeoutError when the guest prints nothing more, or takes too long */
async function untilLate(console: string, limits: ProbeLimits, signal: AbortSignal): Promise<void> {
  const begunAt = performance.now();
  let [bytes, printedAt] = [0, Infinity];
  for (;;) {
    await sleep(WATCH_MS, undefined, { signal });
    const { size = 0 } = (await stat(console).catch(() => undefined)) ?? {};
    const now = performance.now();
    if (size !== bytes) [bytes, printedAt] = [size, now];
    if (now - printedAt > limits.silenceMs) {
      throw new ProbeTimeoutError(`the guest printed nothing for ${limits.silenceMs} ms`);
    }
    if (now - begunAt > limits.bootMs) {
      throw new ProbeTimeoutError(`the guest did not boot within ${limits.bootMs} ms`);
    }
  }
}

/**
 * Boots a guest under KVM until its first message.
 * @returns why machines run as they will
 * @throws the signal's reason
 */
export async function probe(
  options: ProbeOptions,
  signal: AbortSignal = AbortSignal.timeout(2 * LIMITS.bootMs),
): Promise<AcceleratorChoice> {
  const { host, uid, log, tried = 'kvm', limits = LIMITS } = options;
  const place = { name: NAME, directory: join(options.directory, NAME) };
  const { run: runDir } = machinePaths(place.directory);
  await clearMachine(host, place);
  await mkdir(place.directory, { recursive: true, mode: 0o700 });
  const spec: Launch = {
    ...{ ...place, accelerator: tried, vcpuCount: 1, memSizeMib: PROBE_MIB, uid },
    memory: { kind: 'own' },
    diskLayers: [],
    network: undefined,
  };
  const ended = new AbortController();
  const late = untilLate(runPaths(runDir).console, limits, AbortSignal.any([signal, ended.signal]));
  try {
    await Promise.race([bootOnce(host, spec, limits.bootMs + LIMITS.bootMs), late]);
    return { accelerator: 'kvm', reason: 'booted' };
  } catch (error) {
    signal.throwIfAborted();
    const isLate = error instanceof ProbeTimeoutError;
    const printed = (await readConsole(runDir)).join(' | ').slice(-PRINTED_LENGTH_MAX);
    log.warn({ err: toError(error), printed }, 'accelerator:kvmUnusable');
    return { accelerator: 'tcg', reason: isLate ? 'timed_out' : 'failed' };
  } finally {
    late.catch(() => undefined);
    ended.abort();
    await clearMachine(host, place);
  }
}

/**
 * Decides whether new machines use KVM or are emulated. The presence of /dev/kvm does not mean that
 * a guest boots with it: on some hosts that are virtual machines themselves it hangs. So a guest is
 * booted, once for each boot of the host, version of QEMU and guest; once more when that timed out;
 * and as soon as the device appears. Machines have their accelerator from their start to their end,
 * and what was saved of one continues under the same (TemplateStore).
 */
export class HostAccelerator {
  readonly #options: ProbeOptions;
  readonly #closed = new AbortController();
  readonly #chosen = Promise.withResolvers<void>();
  #choice: AcceleratorChoice = { accelerator: 'tcg', reason: 'probing' };
  #choosing: Promise<void> = Promise.resolve();

  private constructor(options: ProbeOptions) {
    this.#options = options;
  }

  /** Resolves with an answer, or when the start should wait no longer; it may come later then. */
  static async open(asked: 'auto' | Accelerator, options: ProbeOptions): Promise<HostAccelerator> {
    const host = new HostAccelerator(options);
    if (asked !== 'auto') {
      host.#choice = { accelerator: asked, reason: 'set' };
      return host;
    }
    host.#choosing = host.#choose().catch((error: unknown) => host.#giveUp(error));
    runInBackground('accelerator.choose', () => host.#choosing);
    await settledWithin(host.#chosen.promise, (options.limits ?? LIMITS).startMs);
    return host;
  }

  get choice(): AcceleratorChoice {
    return this.#choice;
  }

  /** Accelerators that machines of this host may have now; new ones get the first. */
  get usable(): readonly Accelerator[] {
    return this.#choice.accelerator === 'kvm' ? accelerators : ['tcg'];
  }

  /** Ends a probe; the next agent repeats it. */
  async close(): Promise<void> {
    this.#closed.abort();
    await this.#choosing;
  }

  async #choose(): Promise<void> {
    const { host, directory, limits = LIMITS, device = '/dev/kvm' } = this.#options;
    const { signal } = this.#closed;
    while (!(await isThere(device))) {
      this.#adopt({ accelerator: 'tcg', reason: 'no_device' });
      await sleep(limits.lookMs, undefined, { signal, ref: false });
    }
    const key = await probeKey(host.guestDir);
    const known = await readAnswer(directory);
    let answer = known?.key === key ? known : await this.#probe(key, 1);
    this.#adopt(choiceOf(answer));
    while (this.#choice.reason === 'timed_out' && (answer.tries ?? 1) < TRIES_MAX) {
      const waitMs = (answer.triedAtMs ?? 0) + limits.retryMs - Date.now();
      await sleep(Math.min(Math.max(0, waitMs), limits.retryMs), undefined, { signal, ref: false });
      answer = await this.#probe(key, TRIES_MAX);
      this.#adopt(choiceOf(answer));
    }
  }

  async #probe(key: string, tries: number): Promise<Answer> {
    const { directory } = this.#options;
    const choice = await probe(this.#options, this.#closed.signal);
    const answer = { key, ...choice, tries, triedAtMs: Date.now() };
    await writeDurably(directory, ANSWER_FILE, JSON.stringify(answer));
    return answer;
  }

  #adopt(choice: AcceleratorChoice): void {
    const { accelerator, reason } = this.#choice;
    const isNews = accelerator !== choice.accelerator || reason !== choice.reason;
    this.#choice = choice;
    if (isNews) this.#options.log.info(choice, 'accelerator:chosen');
    this.#chosen.resolve();
  }

  /** Machines are emulated if there is no answer, until the next agent asks again. */
  #giveUp(error: unknown): void {
    this.#chosen.resolve();
    if (this.#closed.signal.aborted) return;
    this.#options.log.error({ err: toError(error) }, 'accelerator:probeFailed');
    this.#adopt({ accelerator: 'tcg', reason: 'failed' });
  }
}

const isThere = (path: string): Promise<boolean> =>
  access(path).then(
    () => true,
    () => false,
  );
