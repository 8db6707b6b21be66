import type { CreateSandbox } from '@berth/sdk';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { berth } from '../lib/berth.ts';
import { bytes } from '../lib/format.ts';
import { useLoaded } from '../lib/loading.ts';
import { go, linkTo } from '../lib/router.ts';
import { text } from '../text.ts';
import { CrossIcon, PlusIcon } from '../ui/icons.tsx';
import { Button, Check, Choice, Dialog, Field, Form, Lines, type Values } from '../ui/parts.tsx';
import { linesOf } from './disks.tsx';
import { NamesChoice } from './sandbox-network.tsx';

const MiB = 1024 * 1024;
const SIZES = [256, 512, 1024, 2048, 4096, 8192, 16_384];
const MOUNTS_MAX = 16;

interface Mount {
  readonly disk_id: string;
  readonly path: string;
  readonly read_only: boolean;
}

/** The disks that the form names, in their order. */
function mountsOf(values: Values): Mount[] {
  const numbers = Array.from({ length: MOUNTS_MAX }, (_, n) => n);
  return numbers
    .filter((n) => values.get(`disk-${n}`) !== '')
    .map((n) => ({
      disk_id: values.get(`disk-${n}`),
      path: values.get(`path-${n}`),
      read_only: values.get(`read-only-${n}`) !== '',
    }));
}

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
    const mounts = mountsOf(values);
    if (mounts.length > 0) body.mounts = mounts;
  } else {
    body.snapshot = snapshot;
  }
  const ports = linesOf(values.get('ports')).map(Number);
  if (ports.length > 0) body.ports = ports;
  const copyHook = values.get('copy-hook');
  if (copyHook !== '') body.copy_hook = copyHook;
  const idle = Number(values.get('idle')) * 60;
  if (idle > 0) body.idle_ttl_seconds = idle;
  if (values.get('network') === 'deny') {
    const dns = values.get('dns') === 'open' ? ({ dns: 'open' } as const) : {};
    body.network = { egress: { default: 'deny', allow: linesOf(values.get('allow')), ...dns } };
  }
  return body;
}

/** The command that runs in copies; empty: none. */
export const CopyHookField = ({ value }: { value?: string }): JSX.Element => (
  <Field
    label={text.sandbox.copyHook}
    name="copy-hook"
    maxLength={8192}
    defaultValue={value ?? ''}
    hint={text.sandbox.copyHookHint}
  />
);

interface Sources {
  readonly disks: readonly (readonly [id: string, name: string])[];
  readonly snapshots: readonly (readonly [id: string, name: string])[];
  /** The snapshots that have memory. */
  readonly remembering: ReadonlySet<string>;
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
    remembering: new Set(ready.filter(({ info }) => info.has_memory).map(({ id }) => id)),
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
        <>
          <NamesChoice />
          <Lines label={text.network.allow} name="allow" hint={text.network.targets} rows={3} />
        </>
      ) : null}
    </>
  );
}

function MountFields({ disks }: { disks: Sources['disks'] }): JSX.Element {
  const [numbers, setNumbers] = useState<readonly number[]>([]);
  const add = (): void => {
    const free = Array.from({ length: MOUNTS_MAX }, (_, n) => n).find((n) => !numbers.includes(n));
    if (free !== undefined) setNumbers([...numbers, free]);
  };
  return (
    <fieldset class="mounts">
      <legend>{text.sandbox.mounts}</legend>
      {numbers.length > 0 && <p class="hint">{text.sandbox.mountsHint}</p>}
      {numbers.map((n, row) => (
        <div key={n} class="mount">
          <Choice label={text.sandboxes.mount} name={`disk-${n}`} options={disks} />
          <Field
            label={text.sandboxes.mountPath}
            name={`path-${n}`}
            defaultValue={row === 0 ? '/mnt/disk' : `/mnt/disk-${row + 1}`}
            required
          />
          <Check label={text.sandbox.readOnly} name={`read-only-${n}`} />
          <Button
            kind="quiet"
            label={text.sandboxes.removeMount}
            onClick={() => setNumbers(numbers.filter((each) => each !== n))}
          >
            <CrossIcon />
          </Button>
        </div>
      ))}
      <Button disabled={disks.length === 0 || numbers.length === MOUNTS_MAX} onClick={add}>
        <PlusIcon />
        {text.sandboxes.addMount}
      </Button>
    </fieldset>
  );
}

export function CreateSandboxDialog({ onClose }: { onClose: () => void }): JSX.Element {
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
        <Choice
          label={text.sandboxes.from}
          name="snapshot"
          value={snapshot}
          onChange={setSnapshot}
          options={[['', text.sandboxes.fromImage], ...(sources?.snapshots ?? [])]}
        />
        {snapshot === '' ? (
          <>
            <SizeFields />
            <MountFields disks={sources?.disks ?? []} />
          </>
        ) : null}
        {sources?.remembering.has(snapshot) === true ? <p>{text.sandbox.sameMemory}</p> : null}
        <CopyHookField />
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
