import type { ActivityEvent, SandboxInfo, SnapshotInfo } from '@berth/sdk';
import type { JSX } from 'preact';
import { changeOf, outcomeOf } from '../lib/activity.ts';
import { berth } from '../lib/berth.ts';
import { bytes, seconds } from '../lib/format.ts';
import { type Loaded, useLoaded } from '../lib/loading.ts';
import { linkTo } from '../lib/router.ts';
import { text } from '../text.ts';
import { Shown, Together } from '../ui/loaded.tsx';
import { Empty, Facts, Panel, Status } from '../ui/parts.tsx';
import { When } from '../ui/when.tsx';
import { SandboxFigures, useFigures } from './sandbox-figures.tsx';

const MiB = 1024 * 1024;
const TIMELINE_EVENTS = 12;
const TIMELINE_POLL_MS = 3_000;
const FAMILY_POLL_MS = 5_000;

function Details({ sandbox }: { sandbox: SandboxInfo }): JSX.Element {
  const { image, base_image: base, idle_ttl_seconds: idle } = sandbox;
  const { copy_hook: hook, copy_hook_result: ran } = sandbox;
  return (
    <Panel title={text.sandbox.details}>
      <Facts
        of={[
          [text.sandbox.image, base === '' ? text.sandbox.privateImage : base],
          image === undefined ? null : [text.sandbox.basis, `${image.name} ${image.version}`],
          [text.sandbox.memory, bytes(sandbox.mem_size_mib * MiB)],
          [text.sandbox.cpus, sandbox.vcpu_count],
          [text.sandbox.platform, sandbox.platform],
          [text.sandbox.execsMax, sandbox.max_concurrent_execs],
          [text.sandbox.maxTtl, seconds(sandbox.max_ttl_seconds)],
          [text.sandbox.idleTtl, idle === 0 ? text.never : seconds(idle)],
          hook === undefined ? null : [text.sandbox.copyHook, <code key="hook">{hook}</code>],
          ran === undefined
            ? null
            : [text.sandbox.hookResult, [ran.status, ran.message].filter(Boolean).join(': ')],
          [text.sandbox.id, <code key="id">{sandbox.sandbox_id}</code>],
        ]}
      />
    </Panel>
  );
}

interface HistoryProps {
  readonly sandbox: SandboxInfo;
  readonly events: readonly ActivityEvent[];
}

function History({ sandbox, events }: HistoryProps): JSX.Element {
  const { running_at: running, finished_at: finished, expires_at: expires } = sandbox;
  const reason = [sandbox.exit_reason, sandbox.exit_message].filter(Boolean).join(': ');
  return (
    <Panel title={text.sandbox.history}>
      <Facts
        of={[
          [text.sandbox.created, <When key="at" at={sandbox.created_at} />],
          running === undefined
            ? null
            : [text.sandbox.runningSince, <When key="at" at={running} />],
          [text.sandbox.lastActive, <When key="at" at={sandbox.last_active_at} />],
          expires === undefined ? null : [text.sandbox.expires, <When key="at" at={expires} />],
          finished === undefined ? null : [text.sandbox.finished, <When key="at" at={finished} />],
          reason === '' ? null : [text.sandbox.reason, reason],
        ]}
      />
      {events.length === 0 ? null : <Timeline id={sandbox.sandbox_id} events={events} />}
    </Panel>
  );
}

/** Requests of the account's keys about it, newest first. */
function useTimeline(id: string): Loaded<readonly ActivityEvent[]> {
  const load = async (signal: AbortSignal): Promise<readonly ActivityEvent[]> => {
    const wanted = { sandboxId: id, limit: TIMELINE_EVENTS, signal, retries: 1 };
    const { value } = await berth.account.activity(wanted).pages().next();
    return value?.items ?? [];
  };
  return useLoaded(`timeline ${id}`, load, { everyMs: TIMELINE_POLL_MS });
}

interface TimelineProps {
  readonly id: string;
  readonly events: readonly ActivityEvent[];
}

const Timeline = ({ id, events }: TimelineProps): JSX.Element => (
  <>
    <ol class="timeline" aria-label={text.activity.latest}>
      {events.map((event) => (
        <li key={event.eventId}>
          <span class="muted">
            <When at={event.createdAt} />
          </span>
          {changeOf(event.eventType)}
          <Status of={outcomeOf(event)} />
        </li>
      ))}
    </ol>
    <p>
      <a href={linkTo(['activity'], { sandbox: id })}>{text.activity.all}</a>
    </p>
  </>
);

const Mounts = ({ sandbox: { mounts } }: { sandbox: SandboxInfo }): JSX.Element => (
  <Panel title={text.sandbox.mounts}>
    {mounts.length === 0 ? (
      <Empty title={text.sandbox.noMounts} />
    ) : (
      <Facts
        of={mounts.map((mount) => [
          mount.path,
          <a key={mount.path} href={linkTo(['disks', mount.disk_id])}>
            {mount.disk_id}
            {mount.read_only === true ? ` (${text.sandbox.readOnly})` : ''}
          </a>,
        ])}
      />
    )}
  </Panel>
);

interface Family {
  readonly sandboxes: readonly SandboxInfo[];
  readonly snapshots: readonly SnapshotInfo[];
}

export async function loadFamily(signal: AbortSignal): Promise<Family> {
  const [sandboxes, snapshots] = await Promise.all([
    berth.sandboxes.list({ signal, retries: 1 }),
    berth.snapshots.list({ signal, retries: 1 }).toArray(),
  ]);
  return {
    sandboxes: sandboxes.map(({ info }) => info),
    snapshots: snapshots.map(({ info }) => info),
  };
}

interface NodeProps {
  readonly sandbox: SandboxInfo;
  /** Id of the sandbox whose page this is. */
  readonly current?: string | undefined;
}

const SandboxNode = ({
  sandbox: { sandbox_id: id, name, status },
  current,
}: NodeProps): JSX.Element => (
  <span class="node">
    <a href={linkTo(['sandboxes', id])} aria-current={id === current ? 'page' : undefined}>
      {name}
    </a>
    <Status of={status} />
  </span>
);

interface DescendantsProps {
  readonly of: string;
  readonly family: Family;
  readonly current?: string | undefined;
}

/**
 * Below a sandbox: what was forked from it, its snapshots and what was made from those, and so on.
 */
export function Descendants({ of, family, current }: DescendantsProps): JSX.Element {
  const snapshots = family.snapshots.filter((each) => each.sandbox_id === of);
  return (
    <ul>
      {family.sandboxes
        .filter((each) => each.forked_from === of)
        .map((each) => (
          <li key={each.sandbox_id}>
            <SandboxNode sandbox={each} current={current} />
            <Descendants of={each.sandbox_id} family={family} current={current} />
          </li>
        ))}
      {snapshots.map((snapshot) => (
        <li key={snapshot.snapshot_id}>
          <span class="node">
            {snapshot.name} <span class="tag">{text.snapshots.one}</span>
          </span>
          {family.sandboxes
            .filter((each) => each.snapshot_id === snapshot.snapshot_id)
            .map((each) => (
              <ul key={each.sandbox_id}>
                <li>
                  <SandboxNode sandbox={each} current={current} />
                  <Descendants of={each.sandbox_id} family={family} current={current} />
                </li>
              </ul>
            ))}
        </li>
      ))}
    </ul>
  );
}

/** The oldest sandbox above one, through forks and snapshots, as far as these still exist. */
function rootOf(sandbox: SandboxInfo, family: Family): SandboxInfo {
  for (let at = sandbox; ;) {
    const snapshot = family.snapshots.find((each) => each.snapshot_id === at.snapshot_id);
    const above = at.forked_from ?? snapshot?.sandbox_id;
    const parent = family.sandboxes.find((each) => each.sandbox_id === above);
    if (parent === undefined) return at;
    at = parent;
  }
}

function Tree({ sandbox, family }: { sandbox: SandboxInfo; family: Family }): JSX.Element {
  const root = rootOf(sandbox, family);
  const origin = family.snapshots.find((each) => each.snapshot_id === root.snapshot_id);
  const isAlone =
    root.sandbox_id === sandbox.sandbox_id &&
    family.snapshots.every((each) => each.sandbox_id !== sandbox.sandbox_id) &&
    family.sandboxes.every((each) => each.forked_from !== sandbox.sandbox_id);
  if (isAlone && origin === undefined) return <Empty title={text.sandbox.noFamily} />;
  return (
    <ul class="tree">
      <li>
        {origin === undefined ? null : (
          <span class="node muted">{text.sandbox.madeFrom(origin.name)}</span>
        )}
        <div>
          <SandboxNode sandbox={root} current={sandbox.sandbox_id} />
        </div>
        <Descendants of={root.sandbox_id} family={family} current={sandbox.sandbox_id} />
      </li>
    </ul>
  );
}

export function OverviewView({ sandbox }: { sandbox: SandboxInfo }): JSX.Element {
  const { sandbox_id: id } = sandbox;
  const figures = useFigures(id);
  const timeline = useTimeline(id);
  const family = useLoaded('family', loadFamily, { everyMs: FAMILY_POLL_MS });
  return (
    <Together of={[figures, timeline, family]}>
      <SandboxFigures of={figures} />
      <div class="columns">
        <Details sandbox={sandbox} />
        <History sandbox={sandbox} events={timeline.data ?? []} />
      </div>
      <div class="columns">
        <Mounts sandbox={sandbox} />
        <Panel title={text.sandbox.family}>
          <Shown of={family}>{(all) => <Tree sandbox={sandbox} family={all} />}</Shown>
        </Panel>
      </div>
    </Together>
  );
}
