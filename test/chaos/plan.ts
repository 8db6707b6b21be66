import { Random } from './random.ts';

interface Rule {
  /** The weight with which the kind is drawn. */
  readonly weight: number;
  /** How long the fault lasts, in milliseconds; for a kill, the time until the restart. */
  readonly lastsMs: readonly [min: number, max: number];
  /** Drawn only in rounds of at least this many milliseconds. */
  readonly roundMsMin?: number;
}

/** Every kind of fault that a run can inject; `faults.ts` carries them out. */
const RULES = {
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
} as const satisfies Record<string, Rule>;

export type FaultKind = keyof typeof RULES;

/** A fault of the plan. Which process it hits can depend on what runs then; everything else is drawn. */
export interface Fault {
  /** Since the beginning of the round. */
  readonly atMs: number;
  readonly kind: FaultKind;
  readonly lastsMs: number;
  /** The host that is hit. */
  readonly host: 0 | 1;
  /** Chooses among the possible targets; at least 0 and below 1. */
  readonly choice: number;
}

export const faultKinds = Object.keys(RULES) as readonly FaultKind[];

const GAP_MS_MIN = 300;
/** The pace of a round: some have faults in quick succession, others leave time between two. */
const GAP_MS_MAX = [3_000, 6_000, 12_000] as const;
/** No fault begins in the last part of a round, so that a short round does not end during one. */
const CALM_MS = 1_000;

/**
 * The faults of a round, in the order of their time: a pure function of its arguments.
 * @param only kinds to draw from
 */
export function planRound(
  seed: number,
  round: number,
  roundMs: number,
  only: readonly FaultKind[] = faultKinds,
): Fault[] {
  const random = new Random(seed, `faults ${round}`);
  const rules = only.map((kind): [FaultKind, Rule] => [kind, RULES[kind]]);
  const allowed = rules.filter(([, { roundMsMin = 0 }]) => roundMs >= roundMsMin);
  const weights = Object.fromEntries(allowed.map(([kind, { weight }]) => [kind, weight])) as Record<
    FaultKind,
    number
  >;
  const faults: Fault[] = [];
  const gapMsMax = random.pick(GAP_MS_MAX);
  let atMs = random.integer(GAP_MS_MIN, GAP_MS_MAX[0]);
  while (atMs < roundMs - CALM_MS) {
    const kind = random.weighted(weights);
    const rule: Rule = RULES[kind];
    faults.push({
      atMs,
      kind,
      lastsMs: random.integer(...rule.lastsMs),
      host: random.fraction() < 0.5 ? 0 : 1,
      choice: random.fraction(),
    });
    atMs += random.integer(GAP_MS_MIN, gapMsMax);
  }
  return faults;
}
