import type { DiskInfo } from '@berth/sdk';
import type { JSX } from 'preact';
import { bytes } from '../lib/format.ts';
import { text } from '../text.ts';
import { Chart } from '../ui/chart.tsx';
import { Empty, Facts, Panel } from '../ui/parts.tsx';
import { Table } from '../ui/table.tsx';
import { When } from '../ui/when.tsx';

function Figures({ disk }: { disk: DiskInfo }): JSX.Element {
  const requests = Number(disk.metrics?.requests ?? 0);
  const time = disk.metrics?.avgResponseTime ?? '–';
  const clients = disk.connectedClients.length;
  const size = disk.dataSize ?? 0;
  return (
    <div class="charts" aria-label={text.disk.figures} role="group">
      <Chart label={text.size} value={size} shown={bytes(size)} />
      <Chart label={text.disk.requests} value={requests} shown={requests.toLocaleString('en')} />
      <Chart label={text.disk.responseTime} value={Number.parseFloat(time) || 0} shown={time} />
      <Chart label={text.disk.clients} value={clients} shown={String(clients)} />
    </div>
  );
}

const Details = ({ disk }: { disk: DiskInfo }): JSX.Element => (
  <Panel title={text.disk.details}>
    <Facts
      of={[
        [text.disk.id, <code key="id">{disk.id}</code>],
        [text.disk.region, disk.region],
        [text.disk.created, <When key="created" at={disk.createdAt} />],
        [text.disk.lastUsed, <When key="used" at={disk.lastAccessed} />],
        [text.disk.attached, text.disk.holders(disk.fsHandlerStatus)],
        ...disk.mounts.map(
          (mount) =>
            [
              text.disk.bucket,
              `${mount.type} ${mount.config.bucketName} (${mount.connectionStatus})`,
            ] as const,
        ),
      ]}
    />
  </Panel>
);

const Clients = ({ disk: { connectedClients } }: { disk: DiskInfo }): JSX.Element => (
  <Panel title={text.disk.clients}>
    {connectedClients.length === 0 ? (
      <Empty title={text.disk.noClients} />
    ) : (
      <Table
        label={text.disk.clients}
        rows={connectedClients}
        keyOf={({ id }) => id}
        columns={[
          { title: text.disk.address, cell: ({ ipAddress }) => ipAddress },
          { title: text.disk.connected, cell: ({ connectedAt }) => <When at={connectedAt} /> },
        ]}
      />
    )}
  </Panel>
);

export const OverviewView = ({ disk }: { disk: DiskInfo }): JSX.Element => (
  <>
    <Figures disk={disk} />
    <div class="columns">
      <Details disk={disk} />
      <Clients disk={disk} />
    </div>
  </>
);
