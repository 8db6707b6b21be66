import type { ActivityEvent } from '@berth/sdk';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import {
  activityTypes,
  changeOf,
  outcomeOf,
  subjectOf,
  thingOf,
  things,
  typesOf,
} from '../lib/activity.ts';
import { berth, isAllowed } from '../lib/berth.ts';
import { moment } from '../lib/format.ts';
import { useLoaded } from '../lib/loading.ts';
import { go, linkTo, query } from '../lib/router.ts';
import { text } from '../text.ts';
import { Shown, Together } from '../ui/loaded.tsx';
import { Button, Choice, Dialog, Empty, Field, Page, Status } from '../ui/parts.tsx';
import { type Column, Table } from '../ui/table.tsx';
import { When } from '../ui/when.tsx';

const POLL_MS = 5_000;
const PAGE_EVENTS = 50;
/** Ids of keys are longer, and say nothing more: their beginning is shown. */
const ID_MAX = 40;
const LEVELS = ['info', 'warning', 'error'] as const;

/** Which events are shown: the query of the page's address, so that a link can say it. */
type Filter = Readonly<Record<'about' | 'kind' | 'level' | 'disk' | 'sandbox', string>>;

function filterOf(parameters: URLSearchParams): Filter {
  const get = (name: string): string => parameters.get(name) ?? '';
  return {
    about: get('about'),
    kind: get('kind'),
    level: get('level'),
    disk: get('disk'),
    sandbox: get('sandbox'),
  };
}

function show(filter: Filter): void {
  const used = Object.entries(filter).filter(([, value]) => value !== '');
  go(linkTo(['activity'], Object.fromEntries(used)), { replace: true });
}

interface Events {
  readonly events: readonly ActivityEvent[];
  readonly hasMore: boolean;
}

/** The newest pages of the events. @param count how many pages */
async function loadEvents(filter: Filter, count: number, signal: AbortSignal): Promise<Events> {
  const { about, kind, disk, sandbox } = filter;
  const known = activityTypes.find((type) => type === kind);
  const eventType = known === undefined ? typesOf(about) : [known];
  const level = LEVELS.find((each) => each === filter.level);
  const pages = berth.account
    .activity({
      ...{ limit: PAGE_EVENTS, signal, retries: 1 },
      ...(eventType.length === 0 ? {} : { eventType }),
      ...(level === undefined ? {} : { level }),
      ...(disk === '' ? {} : { diskId: disk }),
      ...(sandbox === '' ? {} : { sandboxId: sandbox }),
    })
    .pages();
  const events: ActivityEvent[] = [];
  for (let n = 0; n < count; n += 1) {
    const { value } = await pages.next();
    if (value === undefined) return { events, hasMore: false };
    events.push(...value.items);
    if (value.nextCursor === undefined) return { events, hasMore: false };
  }
  return { events, hasMore: true };
}

/** Names of the account's keys, for those that may see them. */
async function loadKeyNames(signal: AbortSignal): Promise<Readonly<Record<string, string>>> {
  if (!isAllowed('admin')) return {};
  const keys = await berth.apiKeys.list({ signal, retries: 1 }).toArray();
  return Object.fromEntries(keys.map(({ id, name }) => [id, name]));
}

function Filters({ filter }: { filter: Filter }): JSX.Element {
  const kinds = filter.about === '' ? [] : typesOf(filter.about);
  return (
    <div class="filters">
      <Choice
        label={text.activity.about}
        name="about"
        value={filter.about}
        options={[
          ['', text.activity.everything],
          ...things.map((thing) => [thing, thing] as const),
        ]}
        onChange={(about) => show({ ...filter, about, kind: '' })}
      />
      <Choice
        label={text.activity.kind}
        name="kind"
        value={filter.kind}
        options={[
          ['', text.activity.everything],
          ...kinds.map((type) => [type, changeOf(type)] as const),
        ]}
        onChange={(kind) => show({ ...filter, kind })}
      />
      <Choice
        label={text.activity.outcome}
        name="level"
        value={filter.level}
        options={[
          ['', text.activity.everything],
          ...LEVELS.map((level) => [level, text.activity.levels[level]] as const),
        ]}
        onChange={(level) => show({ ...filter, level })}
      />
      <Field
        label={text.activity.id}
        name="id"
        type="search"
        value={filter.disk === '' ? filter.sandbox : filter.disk}
        placeholder="dsk-…"
        onChange={(event) => {
          const id = event.currentTarget.value.trim();
          const isDisk = id.startsWith('dsk-');
          show({ ...filter, disk: isDisk ? id : '', sandbox: isDisk ? '' : id });
        }}
      />
    </div>
  );
}

function Subject({ event }: { event: ActivityEvent }): JSX.Element {
  const { id, href } = subjectOf(event);
  if (id === undefined) return <>–</>;
  const shown = (
    <span class="mono" title={id}>
      {id.length > ID_MAX ? `${id.slice(0, 16)}…` : id}
    </span>
  );
  return href === undefined ? shown : <a href={href}>{shown}</a>;
}

const columnsFor = (
  names: Readonly<Record<string, string>>,
  onOpen: (event: ActivityEvent) => void,
): Column<ActivityEvent>[] => [
  {
    title: text.activity.change,
    cell: (event) => (
      <button type="button" class="link" onClick={() => onOpen(event)}>
        {`${thingOf(event.eventType)}: ${changeOf(event.eventType)}`}
      </button>
    ),
  },
  { title: text.activity.about, isExtra: true, cell: (event) => <Subject event={event} /> },
  { title: text.activity.outcome, cell: (event) => <Status of={outcomeOf(event)} /> },
  {
    title: text.activity.by,
    isExtra: true,
    cell: ({ details }) => {
      const key = details['keyId'];
      if (typeof key !== 'string') return text.activity.operator;
      return names[key] ?? <span class="mono">{`${key.slice(0, 8)}…`}</span>;
    },
  },
  {
    title: text.activity.when,
    cell: ({ createdAt }) => <When at={createdAt} />,
  },
];

interface ListProps extends Events {
  readonly names: Readonly<Record<string, string>>;
  readonly onMore: () => void;
}

function EventList({ events, hasMore, names, onMore }: ListProps): JSX.Element {
  const [opened, setOpened] = useState<ActivityEvent>();
  return (
    <>
      <Table
        label={text.activity.title}
        columns={columnsFor(names, setOpened)}
        rows={events}
        keyOf={({ eventId }) => eventId}
      />
      {hasMore ? (
        <p class="more">
          <Button onClick={onMore}>{text.activity.more}</Button>
        </p>
      ) : null}
      {opened === undefined ? null : (
        <Dialog title={opened.eventType} onClose={() => setOpened(undefined)} isWide>
          <p class="muted">{moment(opened.createdAt)}</p>
          <pre class="output" tabIndex={0} aria-label={text.activity.record}>
            {JSON.stringify(opened, undefined, 2)}
          </pre>
        </Dialog>
      )}
    </>
  );
}

export function ActivityPage(): JSX.Element {
  const filter = filterOf(query.value);
  const key = `activity ${JSON.stringify(filter)}`;
  const [shown, setShown] = useState({ key, pages: 1 });
  const pages = shown.key === key ? shown.pages : 1;
  // Older pages stay as they are while they are read.
  const polling = pages === 1 ? { everyMs: POLL_MS } : {};
  const loaded = useLoaded(key, (signal) => loadEvents(filter, pages, signal), polling);
  const names = useLoaded('key names', loadKeyNames);
  const more = (): void => {
    setShown({ key, pages: pages + 1 });
    loaded.reload();
  };
  const isFiltered = Object.values(filter).some((value) => value !== '');
  return (
    <Page title={text.activity.title}>
      <Filters filter={filter} />
      <Together of={[loaded, names]}>
        <Shown of={loaded}>
          {(data) =>
            data.events.length === 0 ? (
              <Empty title={isFiltered ? text.activity.noneLike : text.activity.none}>
                <p>{isFiltered ? text.activity.noneLikeHint : text.activity.noneHint}</p>
              </Empty>
            ) : (
              <EventList {...data} names={names.data ?? {}} onMore={more} />
            )
          }
        </Shown>
      </Together>
    </Page>
  );
}
