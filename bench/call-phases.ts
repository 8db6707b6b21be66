import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { type ReceivedSpan, TraceReceiver } from '../test/helpers/trace-receiver.ts';
import { Stack } from '../test/helpers/stack.ts';
import { waitFor } from '../test/helpers/wait.ts';
import { GiB } from '../shared/units.ts';
import { median, quantile } from './statistics.ts';

const CALLS = 100;
const WARM_UP = 20;
const PACE_MS = 150;
/** A call that has a container of a host do something with a disk. */
export interface TracedCall {
  /** For the title. */
  readonly name: string;
  readonly operation: 'exec' | 'grep';
  readonly body: Readonly<Record<string, unknown>>;
}

/** A part of a call's time: from one moment of its trace to another. */
interface Phase {
  readonly name: string;
  readonly ms: (trace: Trace) => number;
}

/** The moments of one call, in milliseconds. */
class Trace {
  readonly #spans: ReadonlyMap<string, ReceivedSpan>;
  readonly totalMs: number;

  constructor(spans: readonly ReceivedSpan[], totalMs: number) {
    this.#spans = new Map(spans.map((span) => [span.name, span]));
    this.totalMs = totalMs;
  }

  begin(name: string): number {
    return Number(this.#find(name).startTimeUnixNano) / 1e6;
  }

  end(name: string): number {
    return Number(this.#find(name).endTimeUnixNano) / 1e6;
  }

  /** When the row was durable; 0 when that was not waited for. */
  get syncedAt(): number {
    return this.#spans.has(SYNC) ? this.end(SYNC) : 0;
  }

  length(name: string): number {
    return this.end(name) - this.begin(name);
  }

  #find(name: string): ReceivedSpan {
    const span = this.#spans.get(name);
    if (span === undefined) throw new Error(`the trace has no span ${name}`);
    return span;
  }
}

const whole = (name: string, label: string): Phase => ({
  name: label,
  ms: (trace) => trace.length(name),
});

/** The row of a search is not synced, so its calls have no such span. */
const SYNC = 'journal.sync';

const routeOf = ({ operation }: TracedCall): string => `POST /api/disks/{id}/${operation}`;
const jobOf = ({ operation }: TracedCall): string => `${operation}.run`;

const untilJob = (route: string, send: string, job: string): Phase[] => [
  { name: 'client, HTTP', ms: (trace) => trace.totalMs - trace.length(route) },
  {
    name: 'control: key (Redis), input',
    ms: (trace) => trace.begin('directory.read') - trace.begin(route),
  },
  whole('directory.read', 'control: disk (Redis)'),
  {
    name: 'control: placement',
    ms: (trace) => trace.begin(send) - trace.end('directory.read'),
  },
  {
    name: 'queue: until the agent has it',
    ms: (trace) => trace.begin(job) - trace.begin(send),
  },
];

const onHost = (job: string): Phase[] => [
  {
    name: 'agent: opening the job',
    ms: (trace) => trace.begin('journal.begin') - trace.begin(job),
  },
  whole('journal.begin', 'agent: row of the journal'),
  whole('disk.claim', 'agent: claim'),
  whole('container.take', 'agent: container'),
  whole('container.mount', 'container: mount'),
  whole('command', 'container: program, reaping'),
  {
    name: 'container: counters, output',
    ms: (trace) => trace.begin('container.unmount') - trace.end('command'),
  },
  whole('container.unmount', 'container: unmount'),
  {
    name: 'agent: the row’s sync, if later',
    ms: (trace) => Math.max(0, trace.syncedAt - trace.end('container.unmount')),
  },
  {
    name: 'agent: answering',
    ms: (trace) => trace.end(job) - Math.max(trace.syncedAt, trace.end('container.unmount')),
  },
];

const untilAnswer = (route: string, send: string, job: string): Phase[] => [
  {
    name: 'link: until control has it',
    ms: (trace) => trace.end(send) - trace.end(job),
  },
  { name: 'control: answer', ms: (trace) => trace.end(route) - trace.end(send) },
];

/** In the order in which they happen; together they are the whole call. */
function phasesOf(call: TracedCall): Phase[] {
  const job = jobOf(call);
  const parts = [routeOf(call), `send ${job}`, job] as const;
  return [...untilJob(...parts), ...onHost(job), ...untilAnswer(...parts)];
}

/** The spans of control and of the agent come in batches of their own. */
const isWhole = (spans: readonly ReceivedSpan[], call: TracedCall): boolean =>
  [routeOf(call), jobOf(call), 'command'].every((name) => spans.some((span) => span.name === name));

/** Where the time of paced calls goes, from the spans of their traces; prints the medians. */
export async function benchCallPhases(call: TracedCall): Promise<void> {
  const receiver = await TraceReceiver.open();
  const stack = await Stack.start({
    DISK_SIZE_BYTES: String(GiB),
    OTEL_EXPORTER_OTLP_ENDPOINT: receiver.url,
    OTEL_BSP_SCHEDULE_DELAY: '5000',
  });
  try {
    const api = await stack.newClient();
    const { id } = await api.data<{ id: string }>('POST', '/api/disks', { name: 'phases' });
    const url = `${api.baseUrl}/api/disks/${id}/${call.operation}`;
    const body = JSON.stringify(call.body);
    const calls: { readonly traceId: string; readonly totalMs: number }[] = [];
    for (let i = 0; i < WARM_UP + CALLS; i += 1) {
      const traceId = randomBytes(16).toString('hex');
      const headers = {
        authorization: `Bearer ${api.key}`,
        'content-type': 'application/json',
        traceparent: `00-${traceId}-${randomBytes(8).toString('hex')}-01`,
      };
      const begunAt = performance.now();
      const response = await fetch(url, { method: 'POST', headers, body });
      const answer = await response.text();
      if (!response.ok) throw new Error(answer);
      const totalMs = performance.now() - begunAt;
      if (i >= WARM_UP) calls.push({ traceId, totalMs });
      await sleep(PACE_MS);
    }
    const traces = await waitFor('all spans', () => {
      const found = calls.map(({ traceId, totalMs }) => ({
        spans: receiver.spansOfTrace(traceId),
        totalMs,
      }));
      return Promise.resolve(found.every(({ spans }) => isWhole(spans, call)) && found);
    });
    const all = traces.map(({ spans, totalMs }) => new Trace(spans, totalMs));
    print(call, all);
  } finally {
    await stack.stop();
    await receiver.close();
  }
}

function print(call: TracedCall, traces: readonly Trace[]): void {
  const totals = traces.map(({ totalMs }) => totalMs);
  process.stdout.write(
    `${call.name}, one per ${PACE_MS} ms, traced: p50 ${median(totals).toFixed(1)} ms\n`,
  );
  const beside = traces.every(({ syncedAt }) => syncedAt > 0)
    ? [whole(SYNC, '(beside: the row’s sync)')]
    : [];
  for (const { name, ms } of [...phasesOf(call), ...beside]) {
    const samples = traces.map((trace) => ms(trace));
    const [p50, p90] = [median(samples), quantile(samples, 0.9)];
    process.stdout.write(
      `  ${name.padEnd(32)} p50 ${p50.toFixed(2).padStart(6)}  p90 ${p90.toFixed(2).padStart(6)} ms\n`,
    );
  }
  process.stdout.write('\n');
}
