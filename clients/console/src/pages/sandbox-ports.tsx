import type { CreatedPortToken, PortToken, SandboxInfo, SandboxPort } from '@berth/sdk';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { berth } from '../lib/berth.ts';
import { useLoaded } from '../lib/loading.ts';
import { text } from '../text.ts';
import {
  Button,
  Empty,
  Failure,
  Field,
  Form,
  Loading,
  Panel,
  Secret,
  type Values,
} from '../ui/parts.tsx';
import { type Column, Table } from '../ui/table.tsx';
import { When } from '../ui/when.tsx';

const POLL_MS = 5_000;

interface Ports {
  readonly ports: readonly SandboxPort[];
  readonly tokens: readonly PortToken[];
}

interface Part {
  readonly id: string;
  readonly data: Ports;
  readonly reload: () => void;
}

/** A link for browsers: the scheme is this page's, the ingress may have another port. */
const linkOf = (hostname: string): string => `${location.protocol}//${hostname}/`;

/** A hostname that breaks between its parts where it does not fit on one line. */
const Hostname = ({ of }: { of: string }): JSX.Element => (
  <>{of.split(/(?<=-)|(?=\.)/u).flatMap((part, n) => [<wbr key={n} />, part])}</>
);

function PortsPanel({ id, data, reload }: Part): JSX.Element {
  const expose = async (values: Values): Promise<void> => {
    const { network } = await berth.sandboxes.get(id);
    await network.expose(Number(values.get('port')));
    reload();
  };
  const unexpose = async (port: number): Promise<void> => {
    await (await berth.sandboxes.get(id)).network.unexpose(port);
    reload();
  };
  const columns: Column<SandboxPort>[] = [
    { title: text.ports.port, cell: ({ port }) => <span class="whole">{port}</span> },
    {
      title: text.ports.address,
      cell: ({ hostname }) => (
        <a class="mono" href={linkOf(hostname)} target="_blank" rel="noopener noreferrer">
          <Hostname of={hostname} />
        </a>
      ),
    },
    {
      title: text.actions,
      isActions: true,
      cell: ({ port }) => (
        <Button kind="quiet" onClick={() => unexpose(port)}>
          {text.ports.close}
        </Button>
      ),
    },
  ];
  return (
    <Panel title={text.ports.exposed}>
      <p class="muted">{text.ports.exposedHint}</p>
      <Form submit={text.ports.expose} onSubmit={expose} isRow>
        <Field label={text.ports.port} name="port" type="number" min={1} max={65_535} required />
      </Form>
      {data.ports.length === 0 ? (
        <Empty title={text.ports.none}>
          <p>{text.ports.noneHint}</p>
        </Empty>
      ) : (
        <Table
          label={text.ports.exposed}
          columns={columns}
          rows={data.ports}
          keyOf={({ port }) => String(port)}
        />
      )}
    </Panel>
  );
}

function TokensPanel({ id, data, reload }: Part): JSX.Element {
  const [created, setCreated] = useState<CreatedPortToken>();
  const create = async (values: Values): Promise<void> => {
    const { network } = await berth.sandboxes.get(id);
    const ttl = values.get('ttl').trim();
    const port = Number(values.get('port'));
    setCreated(await network.createToken({ port, ...(ttl === '' ? {} : { ttl }) }));
    reload();
  };
  const revoke = async (token: string): Promise<void> => {
    await (await berth.sandboxes.get(id)).network.deleteToken(token);
    reload();
  };
  const columns: Column<PortToken>[] = [
    {
      title: text.ports.port,
      cell: ({ port, hostname }) => (
        <>
          {port}
          <small class="mono">
            <Hostname of={hostname} />
          </small>
        </>
      ),
    },
    {
      title: text.ports.expires,
      cell: ({ expires_at: at }) => <When at={at} />,
    },
    {
      title: text.actions,
      isActions: true,
      cell: (token) => (
        <Button kind="quiet" onClick={() => revoke(token.id)}>
          {text.ports.revoke}
        </Button>
      ),
    },
  ];
  return (
    <Panel title={text.ports.tokens}>
      <p class="muted">{text.ports.tokensHint}</p>
      <Form submit={text.ports.createToken} onSubmit={create} isRow>
        <Field label={text.ports.port} name="port" type="number" min={1} max={65_535} required />
        <Field label={text.ports.ttl} name="ttl" placeholder="1h30m" />
      </Form>
      {created === undefined ? null : <Secret value={created.token} label={text.ports.token} />}
      {data.tokens.length === 0 ? null : (
        <Table
          label={text.ports.tokens}
          columns={columns}
          rows={data.tokens}
          keyOf={(token) => token.id}
        />
      )}
    </Panel>
  );
}

export function PortsView({ sandbox: { sandbox_id: id } }: { sandbox: SandboxInfo }): JSX.Element {
  const load = async (signal: AbortSignal): Promise<Ports> => {
    const { network } = await berth.sandboxes.get(id, { signal, retries: 1 });
    const [ports, tokens] = await Promise.all([
      network.ports({ signal, retries: 1 }),
      network.tokens({ signal, retries: 1 }).toArray(),
    ]);
    return { ports, tokens };
  };
  const { data, error, reload } = useLoaded(`ports ${id}`, load, { everyMs: POLL_MS });
  if (data === undefined) {
    return error === undefined ? <Loading /> : <Failure error={error} retry={reload} />;
  }
  return (
    <div class="columns">
      <PortsPanel id={id} data={data} reload={reload} />
      <TokensPanel id={id} data={data} reload={reload} />
    </div>
  );
}
