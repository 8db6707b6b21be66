import type { SnapshotInfo } from '@berth/sdk';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { berth } from '../lib/berth.ts';
import { bytes } from '../lib/format.ts';
import { useLoaded } from '../lib/loading.ts';
import { go, linkTo } from '../lib/router.ts';
import { text } from '../text.ts';
import { Shown } from '../ui/loaded.tsx';
import { Button, Confirm, Dialog, Empty, Form, Page, Panel, type Values } from '../ui/parts.tsx';
import { Status } from '../ui/parts.tsx';
import { type Column, Table } from '../ui/table.tsx';
import { When } from '../ui/when.tsx';
import { CopyHookField } from './sandbox-create.tsx';
import { Descendants, loadFamily } from './sandbox-overview.tsx';

const POLL_MS = 3_000;

async function createFrom({ snapshot_id: snapshot }: SnapshotInfo, values?: Values): Promise<void> {
  const hook = values === undefined ? {} : { copy_hook: values.get('copy-hook') };
  const { id } = await berth.sandboxes.create({ snapshot, ...hook }, { wait: false });
  go(linkTo(['sandboxes', id]));
}

const columnsFor = (
  onUse: (snapshot: SnapshotInfo) => unknown,
  onDelete: (snapshot: SnapshotInfo) => void,
): Column<SnapshotInfo>[] => [
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
        <Button kind="quiet" disabled={snapshot.status !== 'ready'} onClick={() => onUse(snapshot)}>
          {text.snapshots.use}
        </Button>
        <Button kind="quiet" onClick={() => onDelete(snapshot)}>
          {text.delete}
        </Button>
      </>
    ),
  },
];

/** Asks how a sandbox from a snapshot with memory is to differ from others. */
const UseDialog = ({
  snapshot,
  onClose,
}: {
  snapshot: SnapshotInfo;
  onClose: () => void;
}): JSX.Element => (
  <Dialog title={text.snapshots.useTitle(snapshot.name)} onClose={onClose}>
    <Form submit={text.snapshots.use} onSubmit={(values) => createFrom(snapshot, values)}>
      <p>{text.sandbox.sameMemory}</p>
      <CopyHookField value={snapshot.copy_hook ?? ''} />
    </Form>
  </Dialog>
);

function Lists({
  family,
  reload,
}: {
  family: Awaited<ReturnType<typeof loadFamily>>;
  reload: () => void;
}): JSX.Element {
  const [removing, setRemoving] = useState<SnapshotInfo>();
  const [using, setUsing] = useState<SnapshotInfo>();
  const use = (each: SnapshotInfo): unknown =>
    each.has_memory ? setUsing(each) : createFrom(each);
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
        columns={columnsFor(use, setRemoving)}
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
      {using === undefined ? null : (
        <UseDialog snapshot={using} onClose={() => setUsing(undefined)} />
      )}
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
