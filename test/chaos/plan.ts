import { Random } from '../helpers/random.ts';

interface Rule {
  /** The weight with which the kind is drawn. */
  readonly weight: number;
  /** How long the fault lasts, in milliseconds; for a kill, the time until the restart. */
  readonly lastsMs: readonly [min: number, max: number];
  /** Drawn only in rounds of at least this many milliseconds. */
  readonly roundMsMin?: number;
}

export type Rules = Readonly<Record<string, Rule>>;

/** Faults of the processes of two hosts; `faults.ts` carries them out. */
export const PROCESS_RULES = {
  'kill agent': { weight: 5, lastsMs: [100, 4_000] },
  // The helper program is frozen first and continues long after its agent is gone.
  'kill agent in helper': { weight: 5, lastsMs: [200, 9_000] },
  // The agent is killed between two system calls, its own or a helper's.
  'kill agent in slow calls': { weight: 4, lastsMs: [1_000, 8_000] },
  'kill control': { weight: 3, lastsMs: [100, 3_000] },
  'kill redis': { weight: 3, lastsMs: [100, 3_000] },
  'kill everything': { weight: 1, lastsMs: [100, 2_000] },
  'kill helper': { weight: 3, lastsMs: [0, 0] },
  'kill guard': { weight: 1, lastsMs: [0, 0] },
  'kill qemu': { weight: 1, lastsMs: [0, 0] },
  'kill shim': { weight: 1, lastsMs: [0, 0] },
  // The NFS server of a virtual machine; its shim starts another.
  'kill nfs server': { weight: 2, lastsMs: [0, 0] },
  'freeze nfs server': { weight: 1, lastsMs: [500, 12_000] },
  'freeze qemu': { weight: 2, lastsMs: [500, 12_000] },
  'freeze agent': { weight: 3, lastsMs: [500, 12_000] },
  // Longer than a disk's lease.
  'freeze agent long': { weight: 1, lastsMs: [21_000, 30_000], roundMsMin: 60_000 },
  'freeze control': { weight: 2, lastsMs: [500, 8_000] },
  'freeze redis': { weight: 2, lastsMs: [500, 8_000] },
  'freeze helper': { weight: 2, lastsMs: [500, 6_000] },
  'cut host from redis': { weight: 2, lastsMs: [500, 12_000] },
  'cut links': { weight: 2, lastsMs: [500, 10_000] },
  'cut control from host': { weight: 1, lastsMs: [500, 8_000] },
  'break connections': { weight: 2, lastsMs: [0, 0] },
  'slow network': { weight: 2, lastsMs: [1_000, 5_000] },
  'slow calls': { weight: 2, lastsMs: [1_000, 6_000] },
  'fill storage': { weight: 1, lastsMs: [1_500, 4_000] },
} as const satisfies Rules;

export type FaultKind = keyof typeof PROCESS_RULES;

/** Faults of a cluster on machines of its own; `machine-faults.ts` carries them out. */
export const MACHINE_RULES = {
  // With all that runs there, and its mount of the storage; then it boots.
  'kill host': { weight: 4, lastsMs: [500, 45_000] },
  'kill agent': { weight: 3, lastsMs: [100, 4_000] },
  'freeze host': { weight: 3, lastsMs: [1_000, 45_000] },
  'cut host': { weight: 3, lastsMs: [1_000, 45_000] },
  'kill control': { weight: 3, lastsMs: [100, 8_000] },
  'freeze control': { weight: 1, lastsMs: [500, 8_000] },
  'cut control': { weight: 2, lastsMs: [500, 15_000] },
  'kill haproxy': { weight: 1, lastsMs: [100, 2_000] },
  'kill redis primary': { weight: 3, lastsMs: [100, 20_000] },
  'freeze redis primary': { weight: 1, lastsMs: [500, 15_000] },
  'cut redis primary': { weight: 2, lastsMs: [500, 20_000] },
  'kill sentinel': { weight: 1, lastsMs: [100, 10_000] },
  'kill osd': { weight: 2, lastsMs: [100, 10_000] },
  'kill mds': { weight: 2, lastsMs: [100, 10_000] },
  'kill mon': { weight: 2, lastsMs: [100, 10_000] },
  'kill all of ceph': { weight: 1, lastsMs: [100, 5_000] },
  'freeze all of ceph': { weight: 1, lastsMs: [1_000, 15_000] },
} as const satisfies Rules;

export type MachineFaultKind = keyof typeof MACHINE_RULES;

/**
 * A fault of the plan. Which process it hits can depend on what runs then; everything else is
 * drawn.
 */
export interface Fault<Kind extends string = string> {
  /** Since the beginning of the round. */
  readonly atMs: number;
  readonly kind: Kind;
  readonly lastsMs: number;
  /** The host that is hit, from 0. */
  readonly host: number;
  /** Chooses among the possible targets; at least 0 and below 1. */
  readonly choice: number;
}

const GAP_MS_MIN = 300;
/** The pace of a round: some have faults in quick succession, others leave time between two. */
type Paces = readonly [quickMs: number, ...slowerMs: readonly number[]];
export const PROCESS_PACES: Paces = [3_000, 6_000, 12_000];
/** Faults that take a machine away last longer. */
export const MACHINE_PACES: Paces = [6_000, 15_000, 30_000];
/** No fault begins in the last part of a round, so that a short round does not end during one. */
const CALM_MS = 1_000;

interface RoundOptions<Kind extends string> {
  readonly roundMs: number;
  readonly rules: Readonly<Record<Kind, Rule>>;
  /** A round has one of these paces: the longest time between the beginnings of two faults. */
  readonly paces: Paces;
  readonly hosts: number;
  /** Kinds to draw from. */
  readonly only?: readonly string[] | undefined;
}

/** The faults of a round, in the order of their time: a pure function of its arguments. */
export function planRound<Kind extends string>(
  seed: number,
  round: number,
  { roundMs, rules, paces, hosts, only }: RoundOptions<Kind>,
): Fault<Kind>[] {
  const random = new Random(seed, `faults ${round}`);
  const kinds = (Object.keys(rules) as Kind[]).filter((kind) => {
    const { roundMsMin = 0 } = rules[kind];
    return roundMs >= roundMsMin && (only === undefined || only.includes(kind));
  });
  const weights = Object.fromEntries(kinds.map((kind) => [kind, rules[kind].weight])) as Record<
    Kind,
    number
  >;
  const faults: Fault<Kind>[] = [];
  if (kinds.length === 0) return faults;
  const gapMsMax = random.pick(paces);
  let atMs = random.integer(GAP_MS_MIN, paces[0]);
  while (atMs < roundMs - CALM_MS) {
    const kind = random.weighted(weights);
    faults.push({
      atMs,
      kind,
      lastsMs: random.integer(...rules[kind].lastsMs),
      host: Math.floor(random.fraction() * hosts),
      choice: random.fraction(),
    });
    atMs += random.integer(GAP_MS_MIN, gapMsMax);
  }
  return faults;
}
