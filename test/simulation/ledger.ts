/* The answers that callers got, and their consequences. */
import type { SandboxExecRecord, SandboxRecord } from '../../shared/schemas/sandbox-record.ts';
import type { SandboxRow } from '../../agent/system/journal/sandbox-journal.ts';

interface Written {
  readonly path: string;
  readonly text: string;
  /** Files below /run last as long as this boot. */
  readonly bootId: string;
}

/** A sandbox as its caller knows it. */
export interface Known {
  readonly id: string;
  readonly accountId: string;
  readonly name: string;
  /** `maybe`: nobody was told what came of its creation or deletion. */
  fate: 'there' | 'maybe' | 'gone';
  /** How many deletions are under way. */
  ends: number;
  /** Somebody has asked for its deletion. */
  isEnding: boolean;
  /** The newest that a caller has seen. */
  record: SandboxRecord | undefined;
  readonly written: Written[];
  readonly ended: Map<string, SandboxExecRecord>;
  /** Counts its sessions. */
  session: number;
  /** Its session lasts until then at least: by the monotonic clock, as the next one. */
  expiresFrom: number;
  usedAt: number;
  /** Each of them may count, until a caller was told which one does. */
  idleTtlsSeconds: readonly number[];
  /** How many changes of its limits are under way. */
  limitCalls: number;
  /** The earliest time that these set for its session to end. */
  limitCallsExpireFrom: number;
}

/** A snapshot as its caller knows it. */
export interface KnownSnapshot {
  readonly id: string;
  readonly accountId: string;
  fate: Known['fate'];
  /** Somebody has asked for its deletion, so that being made says nothing of its fate. */
  isUnwanted: boolean;
  /** Files that must be in it. */
  readonly files: readonly Written[];
}

/** Before this a limit must not pause it. */
function limitFrom({ idleTtlsSeconds, usedAt, expiresFrom }: Known): number {
  const idle = idleTtlsSeconds.filter((seconds) => seconds > 0);
  return Math.min(expiresFrom, usedAt + Math.min(...idle) * 1000);
}

export class Ledger {
  readonly sandboxes = new Map<string, Known>();
  readonly snapshots = new Map<string, KnownSnapshot>();
  /** Violations that were found. */
  readonly broken: string[] = [];

  get present(): Known[] {
    return [...this.sandboxes.values()].filter(({ fate }) => fate !== 'gone');
  }

  get presentSnapshots(): KnownSnapshot[] {
    return [...this.snapshots.values()].filter(({ fate }) => fate !== 'gone');
  }

  add(id: string, accountId: string, name: string, idleTtlSeconds: number): Known {
    const known: Known = {
      ...{
        id,
        accountId,
        name,
        fate: 'maybe',
        ends: 0,
        isEnding: false,
        record: undefined,
        written: [],
        ended: new Map(),
      },
      ...{
        session: 0,
        expiresFrom: 0,
        usedAt: 0,
        idleTtlsSeconds: [idleTtlSeconds],
        limitCalls: 0,
        limitCallsExpireFrom: Number.POSITIVE_INFINITY,
      },
    };
    this.sandboxes.set(id, known);
    return known;
  }

  /** A caller has seen this record. */
  see(known: Known, record: SandboxRecord): void {
    if ((known.record?.revision ?? 0) < record.revision) known.record = record;
  }

  /** Whether the row, the newest there is, agrees with what callers have seen. */
  checkRow(known: Known, row: SandboxRow): void {
    const { record, id, idleTtlsSeconds, limitCalls } = known;
    const { idleTtlSeconds } = row.config;
    if (!idleTtlsSeconds.includes(idleTtlSeconds)) {
      this.broken.push(
        `${id}: may be idle for ${idleTtlSeconds} s instead of ${idleTtlsSeconds.join()}`,
      );
    }
    if (limitCalls === 0) known.idleTtlsSeconds = [idleTtlSeconds];
    if (record === undefined) return;
    const lost = row.revision < record.revision;
    const differs = row.revision === record.revision && row.state !== record.state;
    if (!lost && !differs) return;
    const seen = `${record.state} in revision ${record.revision}`;
    this.broken.push(`${id}: was seen ${seen} and is ${row.state} in revision ${row.revision}`);
  }

  /** Its session has begun: from now on limits count. */
  noteRunning(id: string, { runningSince, config }: SandboxRow): void {
    const known = this.sandboxes.get(id);
    if (known === undefined || runningSince === undefined) return;
    known.session += 1;
    known.usedAt = runningSince;
    const expiresFrom = runningSince + config.maxTtlSeconds * 1000;
    // A call that is not answered yet may come before the session or after its beginning.
    const earliest = known.limitCalls === 0 ? expiresFrom : known.limitCallsExpireFrom;
    known.expiresFrom = Math.min(expiresFrom, earliest);
  }

  /** A limit has paused it. @param now by the monotonic clock */
  checkLimit(id: string, now: number): void {
    const known = this.sandboxes.get(id);
    if (known === undefined) return;
    const earlyMs = limitFrom(known) - now;
    if (earlyMs > 0) this.broken.push(`${id}: a limit paused it ${earlyMs} ms early`);
  }
}
