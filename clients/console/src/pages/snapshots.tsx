import type { SnapshotInfo } from '@berth/sdk';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { berth } from '../lib/berth.ts';
import { bytes } from '../lib/format.ts';
import { useLoaded } from '../lib/loading.ts';
import { go, linkTo } from '../lib/router.ts';
import { text } from '../text.ts';
import { Shown } from '../ui/loaded.tsx';
import { Button, Confirm, Empty, Page, Panel } from '../ui/parts.tsx';
import { Status } from '../ui/parts.tsx';
import { type Column, Table } from '../ui/table.tsx';
import { When } from '../ui/when.tsx';
import { Descendants, loadFamily } from './sandbox-overview.tsx';

const POLL_MS = 3_000;

async function createFrom({ snapshot_id: snapshot }: SnapshotInfo): Promise<void> {
  const { id } = await berth.sandboxes.create({ snapshot }, { wait: false });
  go(linkTo(['sandboxes', id]));
}

const columnsFor = (onDelete: (snapshot: SnapshotInfo) => void): Column<SnapshotInfo>[] => [
  { title: text.name, cell: ({ name }) => <strong>{name}</strong> },
  {
    title: text.status,
    cell: ({ status, failure_reason: reason }) => (
      <span title={reason}>
        <Status of={status} />
      </span>
    ),
  },
  {
    title: text.snapshots.content,
    isExtra: true,
    cell: (each) => (each.has_memory ? text.snapshots.withMemory : text.snapshots.diskOnly),
  },
  { title: text.size, isExtra: true, isNumber: true, cell: (each) => bytes(each.size_bytes) },
  { title: text.sandboxes.title, isExtra: true, isNumber: true, cell: (e) => e.sandbox_count },
  { title: text.disk.created, isExtra: true, cell: (each) => <When at={each.created_at} /> },
  {
    title: text.actions,
    isActions: true,
    cell: (snapshot) => (
      <>
        <Button
          kind="quiet"
          disabled={snapshot.status !== 'ready'}
          onClick={() => createFrom(snapshot)}
        >
          {text.snapshots.use}
        </Button>
        <Button kind="quiet" onClick={() => onDelete(snapshot)}>
          {text.delete}
        </Button>
      </>
    ),
  },
];

function Lists({
  family,
  reload,
}: {
  family: Awaited<ReturnType<typeof loadFamily>>;
  reload: () => void;
}): JSX.Element {
  const [removing, setRemoving] = useState<SnapshotInfo>();
  const { snapshots, sandboxes } = family;
  if (snapshots.length === 0) {
    return (
      <Empty title={text.snapshots.none}>
        <p>{text.snapshots.noneHint}</p>
      </Empty>
    );
  }
  const nameOf = (id: string): string =>
    sandboxes.find((each) => each.sandbox_id === id)?.name ?? text.snapshots.gone(id);
  const sources = [...new Set(snapshots.map((each) => each.sandbox_id))];
  const made = new Set(snapshots.map((each) => each.snapshot_id));
  const isMade = (id: string): boolean =>
    made.has(sandboxes.find((each) => each.sandbox_id === id)?.snapshot_id ?? '');
  return (
    <>
      <Table
        label={text.snapshots.title}
        columns={columnsFor(setRemoving)}
        rows={snapshots}
        keyOf={(each) => each.snapshot_id}
      />
      <div class="columns">
        <Panel title={text.sandbox.family}>
          <ul class="tree">
            {sources
              .filter((id) => !isMade(id))
              .map((id) => (
                <li key={id}>
                  <span class="node">
                    <a href={linkTo(['sandboxes', id])}>{nameOf(id)}</a>
                  </span>
                  <Descendants of={id} family={family} />
                </li>
              ))}
          </ul>
        </Panel>
      </div>
      {removing === undefined ? null : (
        <Confirm
          title={text.snapshots.deleteTitle(removing.name)}
          submit={text.delete}
          onClose={() => setRemoving(undefined)}
          onConfirm={async () => {
            await (await berth.snapshots.get(removing.snapshot_id)).delete();
            reload();
          }}
        >
          <p>{text.snapshots.deleteText}</p>
        </Confirm>
      )}
    </>
  );
}

export function SnapshotsPage(): JSX.Element {
  const loaded = useLoaded('snapshots', loadFamily, { everyMs: POLL_MS });
  return (
    <Page title={text.snapshots.title}>
      <Shown of={loaded}>{(family) => <Lists family={family} reload={loaded.reload} />}</Shown>
    </Page>
  );
}
