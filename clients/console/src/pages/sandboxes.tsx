import type { CreateSandbox, SandboxInfo } from '@berth/sdk';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { berth } from '../lib/berth.ts';
import { bytes } from '../lib/format.ts';
import { useLoaded } from '../lib/loading.ts';
import { go, linkTo } from '../lib/router.ts';
import { text } from '../text.ts';
import { PlusIcon, SandboxIcon } from '../ui/icons.tsx';
import {
  Button,
  Choice,
  Empty,
  Failure,
  Field,
  Form,
  Lines,
  Loading,
  type Values,
} from '../ui/parts.tsx';
import { Dialog, Page, Stale, Status } from '../ui/parts.tsx';
import { type Column, Table } from '../ui/table.tsx';
import { When } from '../ui/when.tsx';
import { linesOf } from './disks.tsx';

const POLL_MS = 2_000;
const MiB = 1024 * 1024;
const SIZES = [256, 512, 1024, 2048, 4096, 8192, 16_384];

async function listSandboxes(signal: AbortSignal): Promise<SandboxInfo[]> {
  const sandboxes = await berth.sandboxes.list({ signal, retries: 1 });
  return sandboxes.map(({ info }) => info).toReversed();
}

const portsOf = (value: string): number[] => linesOf(value).map(Number);

/** The request of the form; an empty field is left out. */
function bodyOf(values: Values): CreateSandbox {
  const body: CreateSandbox = {};
  const name = values.get('name');
  if (name !== '') body.name = name;
  const snapshot = values.get('snapshot');
  if (snapshot === '') {
    const image = values.get('image').trim();
    if (image !== '') body.base_image = image;
    body.mem_size_mib = Number(values.get('memory'));
    body.vcpu_count = Number(values.get('cpus'));
  } else {
    body.snapshot = snapshot;
  }
  const ports = portsOf(values.get('ports'));
  if (ports.length > 0) body.ports = ports;
  const disk = values.get('disk');
  if (disk !== '') body.mounts = [{ disk_id: disk, path: values.get('path') }];
  const idle = Number(values.get('idle')) * 60;
  if (idle > 0) body.idle_ttl_seconds = idle;
  if (values.get('network') === 'deny') {
    body.network = { egress: { default: 'deny', allow: linesOf(values.get('allow')) } };
  }
  return body;
}

interface Sources {
  readonly disks: readonly (readonly [id: string, name: string])[];
  readonly snapshots: readonly (readonly [id: string, name: string])[];
}

async function loadSources(signal: AbortSignal): Promise<Sources> {
  const [disks, snapshots] = await Promise.all([
    berth.disks.list({ signal }).toArray(),
    berth.snapshots.list({ signal }).toArray(),
  ]);
  const ready = snapshots.filter(({ info }) => info.status === 'ready');
  return {
    disks: disks.map(({ id, name }) => [id, name]),
    snapshots: ready.map(({ id, name }) => [id, name]),
  };
}

const SizeFields = (): JSX.Element => (
  <>
    <Field
      label={text.sandbox.image}
      name="image"
      placeholder={text.sandboxes.imageDefault}
      hint={text.sandboxes.imageHint}
    />
    <div class="pair">
      <Choice
        label={text.sandbox.memory}
        name="memory"
        value="2048"
        options={SIZES.map((mib) => [String(mib), bytes(mib * MiB)])}
      />
      <Field label={text.sandbox.cpus} name="cpus" type="number" min={1} max={32} value="1" />
    </div>
  </>
);

function NetworkFields(): JSX.Element {
  const [network, setNetwork] = useState('allow');
  return (
    <>
      <Choice
        label={text.sandbox.network}
        name="network"
        value={network}
        onChange={setNetwork}
        options={[
          ['allow', text.network.openDefault],
          ['deny', text.network.closedDefault],
        ]}
      />
      {network === 'deny' ? (
        <Lines label={text.network.allow} name="allow" hint={text.network.targets} rows={3} />
      ) : null}
    </>
  );
}

function MountFields({ disks }: { disks: Sources['disks'] }): JSX.Element {
  const [disk, setDisk] = useState('');
  return (
    <div class="pair">
      <Choice
        label={text.sandboxes.mount}
        name="disk"
        value={disk}
        onChange={setDisk}
        options={[['', text.none], ...disks]}
      />
      {disk === '' ? null : (
        <Field label={text.sandboxes.mountPath} name="path" value="/mnt/disk" required />
      )}
    </div>
  );
}

function CreateDialog({ onClose }: { onClose: () => void }): JSX.Element {
  const { data: sources } = useLoaded('sources', loadSources);
  const [snapshot, setSnapshot] = useState('');
  const create = async (values: Values): Promise<void> => {
    const { id } = await berth.sandboxes.create(bodyOf(values), { wait: false });
    go(linkTo(['sandboxes', id]));
  };
  return (
    <Dialog title={text.sandboxes.create} onClose={onClose}>
      <Form submit={text.sandboxes.create} onSubmit={create}>
        <Field
          label={text.name}
          name="name"
          autofocus
          maxLength={63}
          pattern="[a-z0-9]([a-z0-9\-]*[a-z0-9])?"
          hint={text.sandboxes.nameHint}
        />
        {sources === undefined || sources.snapshots.length === 0 ? null : (
          <Choice
            label={text.sandboxes.from}
            name="snapshot"
            value={snapshot}
            onChange={setSnapshot}
            options={[['', text.sandboxes.fromImage], ...sources.snapshots]}
          />
        )}
        {snapshot === '' ? <SizeFields /> : null}
        <MountFields disks={sources?.disks ?? []} />
        <NetworkFields />
        <div class="pair">
          <Field label={text.sandbox.ports} name="ports" placeholder="8080, 3000" />
          <Field
            label={text.sandboxes.idle}
            name="idle"
            type="number"
            min={0}
            max={1440}
            value="0"
            hint={text.sandboxes.idleHint}
          />
        </div>
      </Form>
    </Dialog>
  );
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
  const { data, error, reload } = useLoaded('sandboxes', listSandboxes, { everyMs: POLL_MS });
  const [isCreating, setCreating] = useState(false);
  const create = (
    <Button kind="main" onClick={() => setCreating(true)}>
      <PlusIcon />
      {text.sandboxes.create}
    </Button>
  );
  return (
    <Page title={text.sandboxes.title} actions={create}>
      {data === undefined ? (
        error === undefined ? (
          <Loading />
        ) : (
          <Failure error={error} retry={reload} />
        )
      ) : (
        <>
          <Stale error={error} />
          {data.length === 0 ? (
            <Empty title={text.sandboxes.none}>
              <p>{text.sandboxes.noneHint}</p>
            </Empty>
          ) : (
            <SandboxList sandboxes={data} />
          )}
        </>
      )}
      {isCreating ? <CreateDialog onClose={() => setCreating(false)} /> : null}
    </Page>
  );
}
