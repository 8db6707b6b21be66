import type { Usage } from '@berth/sdk';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { berth } from '../lib/berth.ts';
import { bytes } from '../lib/format.ts';
import { useLoaded } from '../lib/loading.ts';
import { text } from '../text.ts';
import { Shown, Together } from '../ui/loaded.tsx';
import { Meter } from '../ui/meter.tsx';
import { Choice, Facts, Page, Panel } from '../ui/parts.tsx';

const POLL_MS = 5_000;
const MONTHS = 13;
const MiB = 1024 * 1024;
const HOUR_SECONDS = 3600;

/** `2026-11` of now and of the months before, in UTC. */
function latestMonths(now = new Date()): string[] {
  return Array.from({ length: MONTHS }, (_, n) =>
    new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - n)).toISOString().slice(0, 7),
  );
}

/** The account's current holdings: what its limits count. */
interface Held {
  readonly vcpus: number;
  readonly memoryMib: number;
  readonly sandboxes: number;
  readonly disks: number;
  readonly diskBytes: number;
}

async function loadHeld(signal: AbortSignal): Promise<Held> {
  const call = { signal, retries: 1 };
  const [sandboxes, disks] = await Promise.all([
    berth.sandboxes.list(call),
    berth.disks.list(call).toArray(),
  ]);
  const sum = (numbers: readonly number[]): number => numbers.reduce((all, each) => all + each, 0);
  return {
    vcpus: sum(sandboxes.map(({ info }) => info.vcpu_count)),
    memoryMib: sum(sandboxes.map(({ info }) => info.mem_size_mib)),
    sandboxes: sandboxes.length,
    disks: disks.length,
    diskBytes: sum(disks.map(({ info }) => info.dataSize ?? 0)),
  };
}

const plain = (value: number): string => value.toLocaleString('en');
const mebibytes = (value: number): string => bytes(value * MiB);

const ROWS = [
  ['vcpus', plain],
  ['memoryMib', mebibytes],
  ['sandboxes', plain],
  ['disks', plain],
  ['diskBytes', bytes],
] as const;

function Limits({ held, limits }: { held: Held; limits: Usage['limits'] }): JSX.Element {
  const { requestsPerSecond: rate } = limits;
  return (
    <div class="meters">
      {ROWS.map(([name, write]) => {
        const max = limits[name];
        return (
          <Meter
            key={name}
            label={text.usage.held[name]}
            value={
              max === undefined
                ? text.usage.unlimited(write(held[name]))
                : text.usage.ofLimit(write(held[name]), write(max))
            }
            share={max === undefined ? undefined : max === 0 ? 1 : held[name] / max}
          />
        );
      })}
      <Meter
        label={text.usage.requestsPerSecond}
        value={rate === undefined ? text.usage.noLimit : plain(rate)}
        share={undefined}
      />
    </div>
  );
}

/** Hours, with as many digits as say something. */
const hours = (value: number): string =>
  value.toLocaleString('en', { maximumFractionDigits: value < 10 ? 2 : 0 });

const Month = ({ usage }: { usage: Usage }): JSX.Element => (
  <Facts
    of={[
      [text.usage.vcpu, hours(usage.vcpuSeconds / HOUR_SECONDS)],
      [text.usage.memory, hours(usage.memoryGibSeconds / HOUR_SECONDS)],
      [text.usage.storage, hours(usage.storageByteHours / 1024 ** 3)],
      [text.usage.requests, plain(usage.requests)],
      [text.usage.execs, plain(usage.execs)],
      [text.disk.region, usage.region],
    ]}
  />
);

export function UsagePage(): JSX.Element {
  const months = latestMonths();
  const [month, setMonth] = useState(months[0] ?? '');
  const loadUsage = (signal: AbortSignal): Promise<Usage> =>
    berth.account.usage({ month, signal, retries: 1 });
  const usage = useLoaded(`usage ${month}`, loadUsage, { everyMs: POLL_MS });
  const held = useLoaded('held', loadHeld, { everyMs: POLL_MS });
  return (
    <Page title={text.usage.title}>
      <Together of={[held, usage]}>
        <Panel title={text.usage.now}>
          <Shown of={held}>
            {(all) => (
              <Shown of={usage}>{({ limits }) => <Limits held={all} limits={limits} />}</Shown>
            )}
          </Shown>
          <p class="muted">{text.usage.nowHint}</p>
        </Panel>
        <Panel title={text.usage.used}>
          <div class="filters">
            <Choice
              label={text.usage.month}
              name="month"
              value={month}
              options={months.map((each) => [each, each] as const)}
              onChange={setMonth}
            />
          </div>
          <Shown of={usage}>{(figures) => <Month usage={figures} />}</Shown>
          <p class="muted">{text.usage.usedHint}</p>
        </Panel>
      </Together>
    </Page>
  );
}
