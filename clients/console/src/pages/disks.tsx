import type { JSX } from 'preact';
import type { CreatedDiskInfo, CreateDisk, DiskInfo } from '@berth/sdk';
import { useState } from 'preact/hooks';
import { berth } from '../lib/berth.ts';
import { bytes } from '../lib/format.ts';
import { useLoaded } from '../lib/loading.ts';
import { go, linkTo } from '../lib/router.ts';
import { text } from '../text.ts';
import { DiskIcon, PlusIcon } from '../ui/icons.tsx';
import { Shown } from '../ui/loaded.tsx';
import {
  Button,
  Confirm,
  Dialog,
  Empty,
  Field,
  Form,
  Lines,
  Page,
  Secret,
  Status,
  type Values,
} from '../ui/parts.tsx';
import { type Column, Table } from '../ui/table.tsx';
import { When } from '../ui/when.tsx';

const POLL_MS = 5_000;
const PAGE_ROWS = 50;

export const linesOf = (value: string): string[] =>
  value
    .split(/[\n,]/u)
    .map((line) => line.trim())
    .filter((line) => line !== '');

async function listDisks(signal: AbortSignal): Promise<DiskInfo[]> {
  const disks = await berth.disks.list({ signal, retries: 1 }).toArray();
  return disks.map(({ info }) => info).toReversed();
}

const tokenOf = (disk: CreatedDiskInfo | DiskInfo): string | undefined => {
  const [user] = disk.authorizedUsers;
  return user?.token;
};

function CreateDialog({ onClose }: { onClose: () => void }): JSX.Element {
  const [created, setCreated] = useState<CreatedDiskInfo | DiskInfo>();
  const create = async (values: Values): Promise<void> => {
    const disk: CreateDisk = { name: values.get('name') };
    const allowedIps = linesOf(values.get('ips'));
    if (allowedIps.length > 0) disk.allowedIps = allowedIps;
    setCreated((await berth.disks.create(disk)).info);
  };
  if (created !== undefined) {
    const token = tokenOf(created);
    return (
      <Dialog title={text.disks.created(created.name)} onClose={onClose}>
        {token === undefined ? (
          <p>{text.disks.existed}</p>
        ) : (
          <>
            <p>{text.disks.tokenFor(created.authorizedUsers[0]?.identifier ?? '')}</p>
            <Secret value={token} label={text.disk.token} />
          </>
        )}
        <div class="dialog-actions">
          <Button kind="main" onClick={() => go(linkTo(['disks', created.id]))}>
            {text.disks.open}
          </Button>
        </div>
      </Dialog>
    );
  }
  return (
    <Dialog title={text.disks.create} onClose={onClose}>
      <Form submit={text.disks.create} onSubmit={create}>
        <Field
          label={text.name}
          name="name"
          required
          autofocus
          maxLength={100}
          pattern="[A-Za-z0-9_\-]+"
          hint={text.disks.nameHint}
        />
        <Lines label={text.disk.allowedIps} name="ips" hint={text.disks.ipsHint} rows={3} />
      </Form>
    </Dialog>
  );
}

export const DeleteDisk = (props: {
  disk: DiskInfo;
  onClose: () => void;
  onDeleted: () => void;
}): JSX.Element => (
  <Confirm
    title={text.disks.deleteTitle(props.disk.name)}
    submit={text.disks.delete}
    name={props.disk.name}
    onClose={props.onClose}
    onConfirm={async () => {
      await (await berth.disks.get(props.disk.id)).delete();
      props.onDeleted();
    }}
  >
    <p>{text.disks.deleteText(bytes(props.disk.dataSize ?? 0))}</p>
  </Confirm>
);

const columnsFor = (onDelete: (disk: DiskInfo) => void): Column<DiskInfo>[] => [
  {
    title: text.name,
    cell: ({ id, name }) => (
      <a class="with-icon" href={linkTo(['disks', id])}>
        <DiskIcon />
        {name}
      </a>
    ),
  },
  { title: text.status, cell: ({ status }) => <Status of={status} /> },
  {
    title: text.size,
    isNumber: true,
    cell: ({ dataSize }) => (dataSize === undefined ? '–' : bytes(dataSize)),
  },
  {
    title: text.disk.requests,
    isExtra: true,
    isNumber: true,
    cell: (d) => d.metrics?.requests ?? '0',
  },
  {
    title: text.disk.clients,
    isExtra: true,
    isNumber: true,
    cell: (d) => d.connectedClients.length,
  },
  {
    title: text.disk.lastUsed,
    isExtra: true,
    cell: ({ lastAccessed }) => <When at={lastAccessed} />,
  },
  {
    title: text.actions,
    isActions: true,
    cell: (disk) => (
      <Button kind="quiet" label={text.disks.deleteTitle(disk.name)} onClick={() => onDelete(disk)}>
        {text.delete}
      </Button>
    ),
  },
];

function Paging(props: {
  page: number;
  pages: number;
  onPage: (page: number) => void;
}): JSX.Element {
  const { page, pages, onPage } = props;
  return (
    <div class="toolbar">
      <span class="end muted">{text.pageOf(page + 1, pages)}</span>
      <Button disabled={page === 0} onClick={() => onPage(page - 1)}>
        {text.previous}
      </Button>
      <Button disabled={page + 1 >= pages} onClick={() => onPage(page + 1)}>
        {text.next}
      </Button>
    </div>
  );
}

function DiskList({ disks, reload }: { disks: DiskInfo[]; reload: () => void }): JSX.Element {
  const [wanted, setWanted] = useState('');
  const [page, setPage] = useState(0);
  const [removing, setRemoving] = useState<DiskInfo>();
  const found = disks.filter(({ name, id }) => `${name} ${id}`.includes(wanted.trim()));
  const pages = Math.max(1, Math.ceil(found.length / PAGE_ROWS));
  const shown = Math.min(page, pages - 1);
  const rows = found.slice(shown * PAGE_ROWS, (shown + 1) * PAGE_ROWS);
  return (
    <>
      <div class="toolbar">
        <input
          class="search"
          type="search"
          aria-label={text.disks.search}
          placeholder={text.disks.search}
          value={wanted}
          onInput={(event) => setWanted(event.currentTarget.value)}
        />
        <span class="end muted">{text.disks.count(found.length)}</span>
      </div>
      {found.length === 0 ? (
        <Empty title={text.nothingFound(wanted)} />
      ) : (
        <Table
          label={text.disks.title}
          columns={columnsFor(setRemoving)}
          rows={rows}
          keyOf={({ id }) => id}
        />
      )}
      {pages > 1 ? <Paging page={shown} pages={pages} onPage={setPage} /> : null}
      {removing === undefined ? null : (
        <DeleteDisk disk={removing} onClose={() => setRemoving(undefined)} onDeleted={reload} />
      )}
    </>
  );
}

export function DisksPage(): JSX.Element {
  const loaded = useLoaded('disks', listDisks, { everyMs: POLL_MS });
  const { reload } = loaded;
  const [isCreating, setCreating] = useState(false);
  const create = (
    <Button kind="main" onClick={() => setCreating(true)}>
      <PlusIcon />
      {text.disks.create}
    </Button>
  );
  const close = (): void => {
    setCreating(false);
    reload();
  };
  return (
    <Page title={text.disks.title} actions={create}>
      <Shown of={loaded}>
        {(disks) =>
          disks.length === 0 ? (
            <Empty title={text.disks.none}>
              <p>{text.disks.noneHint}</p>
            </Empty>
          ) : (
            <DiskList disks={disks} reload={reload} />
          )
        }
      </Shown>
      {isCreating ? <CreateDialog onClose={close} /> : null}
    </Page>
  );
}
