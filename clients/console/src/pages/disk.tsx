import type { DiskInfo } from '@berth/sdk';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { berth } from '../lib/berth.ts';
import { useLoaded } from '../lib/loading.ts';
import { go, linkTo } from '../lib/router.ts';
import { text } from '../text.ts';
import { Button, Failure, Loading, Page, Stale, Status, Tabs } from '../ui/parts.tsx';
import { AccessView } from './disk-access.tsx';
import { FilesView } from './disk-files.tsx';
import { OverviewView } from './disk-overview.tsx';
import { RunView } from './disk-run.tsx';
import { SearchView } from './disk-search.tsx';
import { DeleteDisk } from './disks.tsx';

const POLL_MS = 2_000;

function View({
  disk,
  view,
  reload,
}: {
  disk: DiskInfo;
  view: string;
  reload: () => void;
}): JSX.Element {
  switch (view) {
    case 'search':
      return <SearchView disk={disk} />;
    case 'run':
      return <RunView disk={disk} />;
    case 'access':
      return <AccessView disk={disk} reload={reload} />;
    case 'figures':
      return <OverviewView disk={disk} />;
    default:
      return <FilesView disk={disk} />;
  }
}

export function DiskPage({ id, view }: { id: string; view: string }): JSX.Element {
  const load = async (signal: AbortSignal): Promise<DiskInfo> =>
    (await berth.disks.get(id, { signal, retries: 1 })).info;
  const { data, error, reload } = useLoaded(`disk ${id}`, load, { everyMs: POLL_MS });
  const [isRemoving, setRemoving] = useState(false);
  const crumbs = [[text.disks.title, linkTo(['disks'])]] as const;
  if (data === undefined) {
    return (
      <Page title={text.disk.title} crumbs={crumbs}>
        {error === undefined ? <Loading /> : <Failure error={error} retry={reload} />}
      </Page>
    );
  }
  const views = ['', 'search', 'run', 'access', 'figures'] as const;
  const tabs = views.map(
    (each) =>
      [each, text.disk.views[each], linkTo(['disks', id, ...(each === '' ? [] : [each])])] as const,
  );
  return (
    <Page
      title={data.name}
      crumbs={crumbs}
      beside={<Status of={data.status} />}
      actions={
        <Button kind="danger" onClick={() => setRemoving(true)}>
          {text.disks.delete}
        </Button>
      }
    >
      <Tabs label={text.disk.title} tabs={tabs} current={view} />
      <Stale error={error} />
      <View disk={data} view={view} reload={reload} />
      {isRemoving ? (
        <DeleteDisk
          disk={data}
          onClose={() => setRemoving(false)}
          onDeleted={() => go(linkTo(['disks']))}
        />
      ) : null}
    </Page>
  );
}
