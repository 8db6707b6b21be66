import type { SandboxUsage } from '@berth/sdk';
import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { berth } from '../lib/berth.ts';
import { bytes } from '../lib/format.ts';
import { type Loaded, useLoaded } from '../lib/loading.ts';
import { text } from '../text.ts';
import { Chart } from '../ui/chart.tsx';
import { Shown } from '../ui/loaded.tsx';

const POLL_MS = 2_000;

type Counter = 'cpu_seconds' | 'network_received_bytes' | 'network_sent_bytes';
type Rates = Readonly<Record<Counter, number | undefined>>;
const NO_RATES: Rates = {
  cpu_seconds: undefined,
  network_received_bytes: undefined,
  network_sent_bytes: undefined,
};

/** How much a counter grew per second between two measurements; unknown when it began anew. */
function rateOf(counter: Counter, before: SandboxUsage, now: SandboxUsage): number | undefined {
  const seconds = (Date.parse(now.measured_at) - Date.parse(before.measured_at)) / 1000;
  const grown = (now[counter] ?? Number.NaN) - (before[counter] ?? Number.NaN);
  return seconds > 0 && grown >= 0 ? grown / seconds : undefined;
}

function useRates(usage: SandboxUsage): Rates {
  const before = useRef<SandboxUsage>(undefined);
  const [rates, setRates] = useState(NO_RATES);
  useEffect(() => {
    const old = before.current;
    before.current = usage;
    if (old === undefined) return;
    setRates({
      cpu_seconds: rateOf('cpu_seconds', old, usage),
      network_received_bytes: rateOf('network_received_bytes', old, usage),
      network_sent_bytes: rateOf('network_sent_bytes', old, usage),
    });
  }, [usage]);
  return rates;
}

interface FigureProps {
  readonly label: string;
  readonly value: number | undefined;
  readonly write: (value: number) => string;
}

/** A figure that may be unknown, for a moment or at all. */
const Figure = ({ label, value, write }: FigureProps): JSX.Element => (
  <Chart label={label} value={value} shown={value === undefined ? '–' : write(value)} />
);

const perSecond = (value: number): string => text.figures.perSecond(bytes(Math.round(value)));
const percent = (value: number): string => `${(value * 100).toFixed(value < 0.1 ? 1 : 0)} %`;

function Charts({ usage }: { usage: SandboxUsage }): JSX.Element {
  const rates = useRates(usage);
  return (
    <div class="charts" role="group" aria-label={text.figures.title}>
      <Figure label={text.figures.cpu} value={rates.cpu_seconds} write={percent} />
      <Figure label={text.figures.memory} value={usage.memory_bytes} write={bytes} />
      <Figure label={text.figures.stored} value={usage.stored_bytes} write={bytes} />
      <Figure
        label={text.figures.received}
        value={rates.network_received_bytes}
        write={perSecond}
      />
      <Figure label={text.figures.sent} value={rates.network_sent_bytes} write={perSecond} />
    </div>
  );
}

export function useFigures(id: string): Loaded<SandboxUsage> {
  const load = async (signal: AbortSignal): Promise<SandboxUsage> => {
    const call = { signal, retries: 1 };
    return (await berth.sandboxes.get(id, call)).metrics(call);
  };
  return useLoaded(`figures ${id}`, load, { everyMs: POLL_MS });
}

/** Usage of a sandbox, since its page was opened. */
export const SandboxFigures = ({ of }: { of: Loaded<SandboxUsage> }): JSX.Element => (
  <Shown of={of}>{(usage) => <Charts usage={usage} />}</Shown>
);
