import type { NetworkDecision, NetworkPolicy, SandboxInfo, ShownNetworkPolicy } from '@berth/sdk';
import type { JSX } from 'preact';
import { isPossible } from '../lib/actions.ts';
import { berth } from '../lib/berth.ts';
import { useLoaded } from '../lib/loading.ts';
import { tell } from '../lib/notices.ts';
import { text } from '../text.ts';
import { Shown } from '../ui/loaded.tsx';
import { Choice, Empty, Failure, Form, Lines, Loading, Panel, type Values } from '../ui/parts.tsx';
import { type Column, Table } from '../ui/table.tsx';
import { When } from '../ui/when.tsx';
import { linesOf } from './disks.tsx';

const POLL_MS = 2_500;
const DECISIONS_MAX = 100;

type Egress = NonNullable<ShownNetworkPolicy['egress']>;

const targetOf = (rule: NonNullable<Egress['allow']>[number]): string =>
  typeof rule === 'string' ? rule : rule.target;

/** Rules with values that only their author knows: the API does not show them again. */
const hasSecrets = ({ allow = [] }: Egress): boolean =>
  allow.some((rule) => typeof rule !== 'string');

/** The rules of the form; an empty list is left out. */
function egressOf(values: Values): NonNullable<NetworkPolicy['egress']> {
  const [allow, deny, drain] = ['allow', 'deny', 'drain'].map((name) => linesOf(values.get(name)));
  return {
    default: values.get('default') === 'deny' ? 'deny' : 'allow',
    ...(allow?.length ? { allow } : {}),
    ...(deny?.length ? { deny } : {}),
    ...(values.get('dns') === 'open' ? { dns: 'open' } : {}),
    ...(drain?.length ? { drain_on_pause: drain } : {}),
  };
}

/** Which names are looked up where the default is to deny. */
export const NamesChoice = ({ value }: { value?: Egress['dns'] }): JSX.Element => (
  <Choice
    label={text.network.names}
    name="dns"
    value={value ?? ''}
    options={[
      ['', text.network.allowedNames],
      ['open', text.network.allNames],
    ]}
  />
);

interface EditorProps {
  readonly sandbox: SandboxInfo;
  readonly policy: ShownNetworkPolicy;
  readonly reload: () => void;
}

function Editor({ sandbox, policy, reload }: EditorProps): JSX.Element {
  const egress: Egress = policy.egress ?? { default: 'allow' };
  const isBound = hasSecrets(egress);
  const save = async (values: Values): Promise<void> => {
    const { network } = await berth.sandboxes.get(sandbox.sandbox_id);
    await network.setPolicy({ egress: egressOf(values) });
    tell(text.network.saved);
    reload();
  };
  const isOff = isBound || !isPossible(sandbox.status, 'network');
  const allowed = (egress.allow ?? []).map(targetOf).join('\n');
  return (
    <Panel title={text.network.policy}>
      {isBound ? <p class="stale">{text.network.bound}</p> : null}
      {isPossible(sandbox.status, 'network') ? null : <p class="muted">{text.network.resting}</p>}
      <Form submit={text.save} onSubmit={save} disabled={isOff}>
        <Choice
          label={text.network.default}
          name="default"
          value={egress.default}
          options={[
            ['allow', text.network.openDefault],
            ['deny', text.network.closedDefault],
          ]}
        />
        <NamesChoice value={egress.dns} />
        <Lines
          label={text.network.allow}
          name="allow"
          rows={4}
          value={allowed}
          hint={text.network.targets}
        />
        <Lines
          label={text.network.deny}
          name="deny"
          rows={3}
          value={(egress.deny ?? []).join('\n')}
          hint={text.network.denyHint}
        />
        <Lines
          label={text.network.drain}
          name="drain"
          rows={2}
          value={(egress.drain_on_pause ?? []).join('\n')}
          hint={text.network.drainHint}
        />
      </Form>
    </Panel>
  );
}

const COLUMNS: Column<NetworkDecision>[] = [
  {
    title: text.network.target,
    cell: ({ name, address, port, rule, count: times }) => (
      <>
        <span class="mono">{`${name ?? address ?? '?'}:${port}`}</span>
        <small>{text.network.decided(rule, times)}</small>
      </>
    ),
  },
  {
    title: text.network.verdict,
    cell: ({ allowed }) => (
      <span class={`status ${allowed ? 'good' : 'bad'}`}>
        {allowed ? text.network.allowed : text.network.denied}
      </span>
    ),
  },
  { title: text.network.last, isExtra: true, cell: ({ time }) => <When at={time} /> },
];

function Decisions({ id }: { id: string }): JSX.Element {
  const load = async (signal: AbortSignal): Promise<readonly NetworkDecision[]> => {
    const { network } = await berth.sandboxes.get(id, { signal, retries: 1 });
    const pages = network.decisions({ limit: DECISIONS_MAX, signal, retries: 1 }).pages();
    const { value } = await pages.next();
    return value?.items ?? [];
  };
  const loaded = useLoaded(`decisions ${id}`, load, { everyMs: POLL_MS });
  return (
    <Panel title={text.network.decisions}>
      <Shown of={loaded}>
        {(decisions) =>
          decisions.length === 0 ? (
            <Empty title={text.network.noDecisions} />
          ) : (
            <Table
              label={text.network.decisions}
              columns={COLUMNS}
              rows={decisions}
              keyOf={(each) =>
                JSON.stringify([each.name, each.address, each.protocol, each.port, each.rule])
              }
            />
          )
        }
      </Shown>
    </Panel>
  );
}

export function NetworkView({ sandbox }: { sandbox: SandboxInfo }): JSX.Element {
  const { sandbox_id: id } = sandbox;
  const load = async (signal: AbortSignal): Promise<ShownNetworkPolicy> =>
    (await berth.sandboxes.get(id, { signal })).network.policy({ signal });
  const { data, error, reload } = useLoaded(`policy ${id}`, load);
  if (data === undefined) {
    return error === undefined ? <Loading /> : <Failure error={error} retry={reload} />;
  }
  return (
    <div class="columns">
      <Editor key={JSON.stringify(data)} sandbox={sandbox} policy={data} reload={reload} />
      <Decisions id={id} />
    </div>
  );
}
