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
const ROUTE = 'POST /api/disks/{id}/exec';
const SEND = 'send exec.run';

/** A part of an exec's time: from one moment of its trace to another. */
interface Phase {
  readonly name: string;
  readonly ms: (trace: Trace) => number;
}

/** The moments of one exec, in milliseconds. */
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

/** In the order in which they happen; together they are the whole call. */
const phases: readonly Phase[] = [
  { name: 'client, HTTP', ms: (trace) => trace.totalMs - trace.length(ROUTE) },
  {
    name: 'control: key (Redis), input',
    ms: (trace) => trace.begin('directory.read') - trace.begin(ROUTE),
  },
  whole('directory.read', 'control: disk (Redis)'),
  {
    name: 'control: placement',
    ms: (trace) => trace.begin(SEND) - trace.end('directory.read'),
  },
  {
    name: 'queue: until the agent has it',
    ms: (trace) => trace.begin('exec.run') - trace.begin(SEND),
  },
  {
    name: 'agent: opening the job',
    ms: (trace) => trace.begin('journal.begin') - trace.begin('exec.run'),
  },
  whole('journal.begin', 'agent: row of the journal'),
  whole('disk.claim', 'agent: claim'),
  whole('container.take', 'agent: container'),
  whole('container.mount', 'container: mount'),
  whole('command', 'container: bash, reaping'),
  {
    name: 'container: counters, output',
    ms: (trace) => trace.begin('container.unmount') - trace.end('command'),
  },
  whole('container.unmount', 'container: unmount'),
  {
    name: 'agent: the row’s sync, if later',
    ms: (trace) => Math.max(0, trace.end('journal.sync') - trace.end('container.unmount')),
  },
  {
    name: 'agent: answering',
    ms: (trace) =>
      trace.end('exec.run') - Math.max(trace.end('journal.sync'), trace.end('container.unmount')),
  },
  {
    name: 'link: until control has it',
    ms: (trace) => trace.end(SEND) - trace.end('exec.run'),
  },
  { name: 'control: answer', ms: (trace) => trace.end(ROUTE) - trace.end(SEND) },
];

/** Beside those. */
const sync = whole('journal.sync', '(beside: the row’s sync)');

/** The spans of control and of the agent come in batches of their own. */
const isWhole = (spans: readonly ReceivedSpan[]): boolean =>
  [ROUTE, 'exec.run', 'command'].every((name) => spans.some((span) => span.name === name));

/** Where the time of a paced exec of `true` goes, from the spans of its trace. */
export async function benchExecPhases(): Promise<void> {
  const receiver = await TraceReceiver.open();
  const stack = await Stack.start({
    DISK_SIZE_BYTES: String(GiB),
    OTEL_EXPORTER_OTLP_ENDPOINT: receiver.url,
    OTEL_BSP_SCHEDULE_DELAY: '5000',
  });
  try {
    const api = await stack.newClient();
    const { id } = await api.data<{ id: string }>('POST', '/api/disks', { name: 'phases' });
    const url = `${api.baseUrl}/api/disks/${id}/exec`;
    const calls: { readonly traceId: string; readonly totalMs: number }[] = [];
    for (let i = 0; i < WARM_UP + CALLS; i += 1) {
      const traceId = randomBytes(16).toString('hex');
      const headers = {
        authorization: `Bearer ${api.key}`,
        'content-type': 'application/json',
        traceparent: `00-${traceId}-${randomBytes(8).toString('hex')}-01`,
      };
      const begunAt = performance.now();
      const response = await fetch(url, { method: 'POST', headers, body: '{"command":"true"}' });
      await response.json();
      const totalMs = performance.now() - begunAt;
      if (i >= WARM_UP) calls.push({ traceId, totalMs });
      await sleep(PACE_MS);
    }
    const traces = await waitFor('all spans', () => {
      const found = calls.map(({ traceId, totalMs }) => ({
        spans: receiver.spansOfTrace(traceId),
        totalMs,
      }));
      return Promise.resolve(found.every(({ spans }) => isWhole(spans)) && found);
    });
    print(traces.map(({ spans, totalMs }) => new Trace(spans, totalMs)));
  } finally {
    await stack.stop();
    await receiver.close();
  }
}

function print(traces: readonly Trace[]): void {
  const totals = traces.map(({ totalMs }) => totalMs);
  process.stdout.write(
    `exec of \`true\`, one per ${PACE_MS} ms, traced: p50 ${median(totals).toFixed(1)} ms\n`,
  );
  for (const { name, ms } of [...phases, sync]) {
    const samples = traces.map((trace) => ms(trace));
    const [p50, p90] = [median(samples), quantile(samples, 0.9)];
    process.stdout.write(
      `  ${name.padEnd(32)} p50 ${p50.toFixed(2).padStart(6)}  p90 ${p90.toFixed(2).padStart(6)} ms\n`,
    );
  }
  process.stdout.write('\n');
}
