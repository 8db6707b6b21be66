import type { SandboxInfo } from '@berth/sdk';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { berth } from '../lib/berth.ts';
import { bytes } from '../lib/format.ts';
import { useLoaded } from '../lib/loading.ts';
import { linkTo } from '../lib/router.ts';
import { text } from '../text.ts';
import { PlusIcon, SandboxIcon } from '../ui/icons.tsx';
import { Shown } from '../ui/loaded.tsx';
import { Button, Empty, Page, Status } from '../ui/parts.tsx';
import { type Column, Table } from '../ui/table.tsx';
import { When } from '../ui/when.tsx';
import { CreateSandboxDialog } from './sandbox-create.tsx';

const POLL_MS = 2_000;
const MiB = 1024 * 1024;

async function listSandboxes(signal: AbortSignal): Promise<SandboxInfo[]> {
  const sandboxes = await berth.sandboxes.list({ signal, retries: 1 });
  return sandboxes.map(({ info }) => info).toReversed();
}

const COLUMNS: Column<SandboxInfo>[] = [
  {
    title: text.name,
    cell: ({ sandbox_id: id, name }) => (
      <a class="with-icon" href={linkTo(['sandboxes', id])}>
        <SandboxIcon />
        {name}
      </a>
    ),
  },
  { title: text.status, cell: ({ status }) => <Status of={status} /> },
  { title: text.sandbox.image, isExtra: true, cell: (each) => each.base_image },
  {
    title: text.sandbox.memory,
    isExtra: true,
    isNumber: true,
    cell: (each) => bytes(each.mem_size_mib * MiB),
  },
  { title: text.sandbox.cpus, isExtra: true, isNumber: true, cell: (each) => each.vcpu_count },
  {
    title: text.sandbox.lastActive,
    isExtra: true,
    cell: (each) => <When at={each.last_active_at} />,
  },
];

function SandboxList({ sandboxes }: { sandboxes: readonly SandboxInfo[] }): JSX.Element {
  const [wanted, setWanted] = useState('');
  const [status, setStatus] = useState('');
  const statuses = [...new Set(sandboxes.map((each) => each.status))].sort();
  const found = sandboxes.filter(
    (each) =>
      (status === '' || each.status === status) &&
      `${each.name} ${each.sandbox_id} ${each.base_image}`.includes(wanted.trim()),
  );
  return (
    <>
      <div class="toolbar">
        <input
          class="search"
          type="search"
          aria-label={text.sandboxes.search}
          placeholder={text.sandboxes.search}
          value={wanted}
          onInput={(event) => setWanted(event.currentTarget.value)}
        />
        {['', ...statuses].map((each) => (
          <Button key={each} kind="quiet" pressed={each === status} onClick={() => setStatus(each)}>
            {each === '' ? text.all : each}
          </Button>
        ))}
        <span class="end muted">{text.sandboxes.count(found.length)}</span>
      </div>
      {found.length === 0 ? (
        <Empty title={text.nothingFound(wanted)} />
      ) : (
        <Table
          label={text.sandboxes.title}
          columns={COLUMNS}
          rows={found}
          keyOf={(each) => each.sandbox_id}
        />
      )}
    </>
  );
}

export function SandboxesPage(): JSX.Element {
  const loaded = useLoaded('sandboxes', listSandboxes, { everyMs: POLL_MS });
  const [isCreating, setCreating] = useState(false);
  const create = (
    <Button kind="main" onClick={() => setCreating(true)}>
      <PlusIcon />
      {text.sandboxes.create}
    </Button>
  );
  return (
    <Page title={text.sandboxes.title} actions={create}>
      <Shown of={loaded}>
        {(sandboxes) =>
          sandboxes.length === 0 ? (
            <Empty title={text.sandboxes.none}>
              <p>{text.sandboxes.noneHint}</p>
            </Empty>
          ) : (
            <SandboxList sandboxes={sandboxes} />
          )
        }
      </Shown>
      {isCreating ? <CreateSandboxDialog onClose={() => setCreating(false)} /> : null}
    </Page>
  );
}
