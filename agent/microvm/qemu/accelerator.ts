import { createHash } from 'node:crypto';
import { access, mkdir } from 'node:fs/promises';
import { basename, join } from 'node:path';
import Type from 'typebox';
import type { Logger } from '../../../shared/log.ts';
import { hostBootId } from '../../../shared/process-id.ts';
import { compile } from '../../../shared/validate.ts';
import { run } from '../../system/spawn.ts';
import { writeDurably } from '../../system/write-durably.ts';
import { bootOnce, clearMachine } from './boot-once.ts';
import { hostArchitecture, type Launch, type VmHost } from './launch.ts';
import { type Accelerator, qemuProgram } from './qemu-arguments.ts';
import { readRecord } from '../../system/read-record.ts';

/** Ten times as long as a boot with a working KVM takes. */
const PROBE_MS_MAX = 10_000;
const PROBE_MIB = 256;
const NAME = 'probe';

export interface ProbeOptions {
  readonly host: VmHost;
  /** Holds the recorded answer, and the probe's machine while it runs. */
  readonly directory: string;
  readonly uid: number;
  readonly log: Logger;
}

const Answer = Type.Object({ key: Type.String(), accelerator: Type.Enum(['kvm', 'tcg']) });
const parseAnswer = compile(Answer);
const ANSWER_FILE = 'accelerator.json';

/** A hash of everything that the answer depends on. */
async function probeKey(guestDir: string): Promise<string> {
  const version = await run(qemuProgram(hostArchitecture), ['--version']);
  const parts = [hostBootId(), version, basename(guestDir)];
  return createHash('sha256').update(parts.join('\n')).digest('hex');
}

/**
 * @returns undefined when it must be probed again: for other parts, or without a readable record
 */
async function recall(directory: string, key: string): Promise<Accelerator | undefined> {
  const answer = await readRecord(join(directory, ANSWER_FILE), parseAnswer).catch(() => undefined);
  return answer?.key === key ? answer.accelerator : undefined;
}

const hasKvm = (): Promise<boolean> =>
  access('/dev/kvm').then(
    () => true,
    () => false,
  );

/** Boots a guest until its first message. @throws Error when that does not come in time */
async function probe(options: ProbeOptions, accelerator: Accelerator): Promise<void> {
  const { host, uid } = options;
  const place = { name: NAME, directory: join(options.directory, NAME) };
  await clearMachine(host, place);
  await mkdir(place.directory, { recursive: true, mode: 0o700 });
  const spec: Launch = {
    ...{ ...place, accelerator, vcpuCount: 1, memSizeMib: PROBE_MIB, uid },
    memory: { kind: 'own' },
    diskLayers: [],
    network: undefined,
  };
  try {
    await bootOnce(host, spec, PROBE_MS_MAX);
  } finally {
    await clearMachine(host, place);
  }
}

/**
 * Decides whether machines use KVM or are emulated. The presence of /dev/kvm does not mean that a
 * guest boots with it: on some hosts that are virtual machines themselves it hangs. So a guest is
 * booted, once for each boot of the host, version of QEMU and guest.
 */
export async function chooseAccelerator(
  asked: 'auto' | Accelerator,
  options: ProbeOptions,
): Promise<Accelerator> {
  if (asked !== 'auto') return asked;
  if (!(await hasKvm())) return 'tcg';
  const key = await probeKey(options.host.guestDir);
  const known = await recall(options.directory, key);
  if (known !== undefined) return known;
  const accelerator = await probe(options, 'kvm').then(
    () => 'kvm' as const,
    (err: unknown) => {
      options.log.warn({ err }, 'accelerator:kvmUnusable');
      return 'tcg' as const;
    },
  );
  options.log.info({ accelerator }, 'accelerator:chosen');
  await writeDurably(options.directory, ANSWER_FILE, JSON.stringify({ key, accelerator }));
  return accelerator;
}
