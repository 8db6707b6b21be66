import type { HostInfo } from '@berth/sdk';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { berth } from '../lib/berth.ts';
import { bytes } from '../lib/format.ts';
import { useLoaded } from '../lib/loading.ts';
import { tell } from '../lib/notices.ts';
import { text } from '../text.ts';
import { Shown } from '../ui/loaded.tsx';
import { Meter } from '../ui/meter.tsx';
import { Button, Confirm, Empty, Facts, Page, Panel, Status } from '../ui/parts.tsx';
import { When } from '../ui/when.tsx';

const POLL_MS = 2_000;
const MiB = 1024 * 1024;

const loadHosts = (signal: AbortSignal): Promise<readonly HostInfo[]> =>
  berth.hosts.list({ signal, retries: 1 });

const shareOf = (used: number, all: number): number | undefined =>
  all === 0 ? undefined : used / all;

/** Use and total of a resource. */
function Load({ host }: { host: HostInfo }): JSX.Element {
  const vcpus = host.vcpus - host.vcpusFree;
  const memory = host.memoryMib - host.memoryMibFree;
  return (
    <div class="meters">
      <Meter
        label={text.sandbox.cpus}
        value={text.usage.ofLimit(String(vcpus), String(host.vcpus))}
        share={shareOf(vcpus, host.vcpus)}
      />
      <Meter
        label={text.sandbox.memory}
        value={text.usage.ofLimit(bytes(memory * MiB), bytes(host.memoryMib * MiB))}
        share={shareOf(memory, host.memoryMib)}
      />
      <Meter
        label={text.hosts.commands}
        value={text.hosts.running(host.execsRunning, host.execSlots, host.execsWaiting)}
        share={shareOf(host.execsRunning, host.execSlots)}
      />
    </div>
  );
}

const Figures = ({ host }: { host: HostInfo }): JSX.Element => (
  <Facts
    of={[
      [text.sandboxes.title, text.hosts.active(host.sandboxesActive, host.sandboxes)],
      [text.disks.title, text.hosts.held(host.disks, host.disksHeld)],
      [text.hosts.storageFree, bytes(host.storageFreeBytes)],
      ...(host.accelerator === undefined
        ? []
        : [
            [
              text.hosts.machines,
              text.hosts.accelerator(host.accelerator, host.acceleratorReason),
            ] as const,
          ]),
      [text.hosts.version, host.version],
      [text.hosts.order, text.hosts.orders[host.order]],
      [text.hosts.heard, <When key="heard" at={host.lastHeartbeat} />],
    ]}
  />
);

type Asked = 'drain' | 'remove';

interface AskProps {
  readonly asked: Asked;
  readonly host: HostInfo;
  readonly reload: () => void;
  readonly onClose: () => void;
}

/** The work that goes with a host, as it reported it last. */
const Work = ({ host }: { host: HostInfo }): JSX.Element => (
  <Facts
    of={[
      [text.hosts.heard, <When key="heard" at={host.lastHeartbeat} />],
      [
        text.sandboxes.title,
        text.hosts.named(host.sandboxesActive, host.sandboxesActiveIds, host.sandboxes),
      ],
      [text.disks.title, text.hosts.named(host.disksHeld, host.disksHeldIds, host.disks)],
    ]}
  />
);

function Ask({ asked, host, reload, onClose }: AskProps): JSX.Element {
  const { id } = host;
  const isRemoval = asked === 'remove';
  const act = async (): Promise<void> => {
    await (isRemoval ? berth.hosts.delete(id) : berth.hosts.drain(id));
    tell(isRemoval ? text.hosts.removed(id) : text.hosts.drains(id));
    reload();
  };
  return (
    <Confirm
      title={isRemoval ? text.hosts.removeTitle(id) : text.hosts.drainTitle(id)}
      submit={isRemoval ? text.hosts.remove : text.hosts.drain}
      onConfirm={act}
      onClose={onClose}
      {...(isRemoval ? { name: id } : {})}
    >
      <p>{isRemoval ? text.hosts.removeText : text.hosts.drainText}</p>
      {isRemoval ? <Work host={host} /> : null}
    </Confirm>
  );
}

function Actions({ host, reload }: { host: HostInfo; reload: () => void }): JSX.Element {
  const [asked, setAsked] = useState<Asked>();
  const { id, order, state } = host;
  const change = async (verb: 'cordon' | 'uncordon'): Promise<void> => {
    await berth.hosts[verb](id);
    reload();
  };
  return (
    <>
      <Button disabled={order !== 'up'} onClick={() => change('cordon')}>
        {text.hosts.cordon}
      </Button>
      <Button disabled={order === 'up'} onClick={() => change('uncordon')}>
        {text.hosts.uncordon}
      </Button>
      <Button disabled={order === 'drained'} onClick={() => setAsked('drain')}>
        {text.hosts.drain}
      </Button>
      <Button
        kind="danger"
        disabled={state !== 'away' && state !== 'fenced'}
        onClick={() => setAsked('remove')}
      >
        {text.hosts.remove}
      </Button>
      {asked === undefined ? null : (
        <Ask asked={asked} host={host} reload={reload} onClose={() => setAsked(undefined)} />
      )}
    </>
  );
}

export function HostsPage(): JSX.Element {
  const loaded = useLoaded('hosts', loadHosts, { everyMs: POLL_MS });
  return (
    <Page title={text.hosts.title}>
      <p class="muted intro">{text.hosts.hint}</p>
      <Shown of={loaded}>
        {(hosts) =>
          hosts.length === 0 ? (
            <Empty title={text.hosts.none} />
          ) : (
            <>
              {hosts.map((host) => (
                <Panel
                  key={host.id}
                  title={host.id}
                  beside={<Status of={host.state} />}
                  actions={<Actions host={host} reload={loaded.reload} />}
                >
                  <Load host={host} />
                  <Figures host={host} />
                </Panel>
              ))}
            </>
          )
        }
      </Shown>
    </Page>
  );
}
