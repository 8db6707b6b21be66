import type { CreatedWebhook, Webhook, WebhookDelivery } from '@berth/sdk';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { changeOf, things, webhookEventTypes, webhookTypesOf } from '../lib/activity.ts';
import { berth } from '../lib/berth.ts';
import { count, duration } from '../lib/format.ts';
import { useLoaded } from '../lib/loading.ts';
import { go, linkTo } from '../lib/router.ts';
import { text } from '../text.ts';
import { Shown } from '../ui/loaded.tsx';
import {
  Button,
  Check,
  Confirm,
  Empty,
  Field,
  Form,
  Page,
  Panel,
  Secret,
  Status,
  type Values,
} from '../ui/parts.tsx';
import { type Column, Table } from '../ui/table.tsx';
import { When } from '../ui/when.tsx';

const POLL_MS = 5_000;
const DELIVERIES_POLL_MS = 2_000;

const loadWebhooks = (signal: AbortSignal): Promise<readonly Webhook[]> =>
  berth.webhooks.list({ signal, retries: 1 });

const kindsOf = ({ eventTypes }: Webhook): string =>
  eventTypes === undefined ? text.webhooks.allKinds : eventTypes.join(', ');

interface RemoveProps {
  readonly webhook: Webhook;
  readonly onClose: () => void;
  readonly onDeleted: () => void;
}

const RemoveDialog = ({ webhook, onClose, onDeleted }: RemoveProps): JSX.Element => (
  <Confirm
    title={text.webhooks.deleteTitle(webhook.url)}
    submit={text.delete}
    onClose={onClose}
    onConfirm={async () => {
      await berth.webhooks.delete(webhook.id);
      onDeleted();
    }}
  >
    <p>{text.webhooks.deleteText}</p>
  </Confirm>
);

/** Boxes for the kinds of events; with none of them ticked, all events are sent. */
const KindBoxes = (): JSX.Element => (
  <details class="kinds">
    <summary>{text.webhooks.kinds}</summary>
    <p class="muted">{text.webhooks.kindsHint}</p>
    {things.map((thing) => (
      <fieldset key={thing}>
        <legend>{thing}</legend>
        {webhookTypesOf(thing).map((type) => (
          <Check key={type} name={type} label={changeOf(type)} />
        ))}
      </fieldset>
    ))}
  </details>
);

function CreatePanel({ onCreated }: { onCreated: () => void }): JSX.Element {
  const [created, setCreated] = useState<CreatedWebhook>();
  const create = async (values: Values): Promise<void> => {
    const eventTypes = webhookEventTypes.filter((type) => values.get(type) !== '');
    const kinds = eventTypes.length === 0 ? {} : { eventTypes };
    setCreated(await berth.webhooks.create({ url: values.get('url').trim(), ...kinds }));
    onCreated();
  };
  return (
    <Panel title={text.webhooks.create}>
      <p class="muted">{text.webhooks.hint}</p>
      <Form submit={text.webhooks.create} onSubmit={create}>
        <Field
          label={text.webhooks.url}
          name="url"
          type="url"
          required
          maxLength={2048}
          placeholder="https://hooks.example.com/berth"
        />
        <KindBoxes />
      </Form>
      {created === undefined ? null : (
        <>
          <p>{text.webhooks.secretHint}</p>
          <Secret value={created.secret} label={text.webhooks.secret} />
        </>
      )}
    </Panel>
  );
}

const columnsFor = (onDelete: (webhook: Webhook) => void): Column<Webhook>[] => [
  {
    title: text.webhooks.url,
    cell: ({ id, url }) => <a href={linkTo(['webhooks', id])}>{url}</a>,
  },
  {
    title: text.webhooks.sends,
    isExtra: true,
    cell: (webhook) => (
      <span title={kindsOf(webhook)}>
        {webhook.eventTypes === undefined
          ? text.webhooks.allKinds
          : count(webhook.eventTypes.length, 'kind')}
      </span>
    ),
  },
  { title: text.disk.created, isExtra: true, cell: ({ createdAt }) => <When at={createdAt} /> },
  {
    title: text.actions,
    isActions: true,
    cell: (webhook) => (
      <Button
        kind="quiet"
        label={text.webhooks.deleteTitle(webhook.url)}
        onClick={() => onDelete(webhook)}
      >
        {text.delete}
      </Button>
    ),
  },
];

export function WebhooksPage(): JSX.Element {
  const loaded = useLoaded('webhooks', loadWebhooks, { everyMs: POLL_MS });
  const [removing, setRemoving] = useState<Webhook>();
  return (
    <Page title={text.webhooks.title}>
      <CreatePanel onCreated={loaded.reload} />
      <Shown of={loaded}>
        {(webhooks) =>
          webhooks.length === 0 ? (
            <Empty title={text.webhooks.none}>
              <p>{text.webhooks.noneHint}</p>
            </Empty>
          ) : (
            <Table
              label={text.webhooks.title}
              columns={columnsFor(setRemoving)}
              rows={webhooks}
              keyOf={({ id }) => id}
            />
          )
        }
      </Shown>
      {removing === undefined ? null : (
        <RemoveDialog
          webhook={removing}
          onClose={() => setRemoving(undefined)}
          onDeleted={loaded.reload}
        />
      )}
    </Page>
  );
}

const resultOf = ({ status, problem, willRetry }: WebhookDelivery): string =>
  [
    status === undefined ? undefined : text.webhooks.answered(status),
    problem,
    willRetry ? text.webhooks.again : undefined,
  ]
    .filter(Boolean)
    .join(' · ');

const DELIVERY_COLUMNS: Column<WebhookDelivery>[] = [
  {
    title: text.activity.kind,
    cell: ({ eventType }) => <span class="mono whole">{eventType}</span>,
  },
  {
    title: text.status,
    cell: ({ isDelivered }) => <Status of={isDelivered ? 'delivered' : 'failed'} />,
  },
  { title: text.run.result, isExtra: true, cell: resultOf },
  { title: text.webhooks.attempt, isExtra: true, isNumber: true, cell: ({ attempt }) => attempt },
  {
    title: text.webhooks.took,
    isExtra: true,
    isNumber: true,
    cell: ({ durationMs }) => duration(durationMs),
  },
  {
    title: text.activity.when,
    cell: ({ attemptedAt }) => <When at={attemptedAt} />,
  },
];

interface Found {
  readonly webhook: Webhook | undefined;
  readonly deliveries: readonly WebhookDelivery[];
}

const Deliveries = ({ webhook, deliveries }: Found): JSX.Element => (
  <>
    {webhook === undefined ? null : (
      <p class="muted intro">
        {text.webhooks.sends}: {kindsOf(webhook)}
      </p>
    )}
    <Panel title={text.webhooks.deliveries}>
      {deliveries.length === 0 ? (
        <Empty title={text.webhooks.noDeliveries} />
      ) : (
        <Table
          label={text.webhooks.deliveries}
          columns={DELIVERY_COLUMNS}
          rows={deliveries}
          keyOf={({ eventId, attempt }) => `${eventId} ${attempt}`}
        />
      )}
    </Panel>
  </>
);

/** A webhook, and the latest attempts to send something to it. */
export function WebhookPage({ id }: { id: string }): JSX.Element {
  const load = async (signal: AbortSignal): Promise<Found> => {
    const call = { signal, retries: 1 };
    const deliveries = await berth.webhooks.deliveries(id, call);
    const all = await berth.webhooks.list(call);
    return { webhook: all.find((each) => each.id === id), deliveries };
  };
  const loaded = useLoaded(`webhook ${id}`, load, { everyMs: DELIVERIES_POLL_MS });
  const [isRemoving, setRemoving] = useState(false);
  const webhook = loaded.data?.webhook;
  return (
    <Page
      title={webhook?.url ?? text.webhooks.one}
      crumbs={[[text.webhooks.title, linkTo(['webhooks'])]]}
      actions={
        webhook === undefined ? null : (
          <Button kind="danger" onClick={() => setRemoving(true)}>
            {text.webhooks.delete}
          </Button>
        )
      }
    >
      <Shown of={loaded}>{(found) => <Deliveries {...found} />}</Shown>
      {isRemoving && webhook !== undefined ? (
        <RemoveDialog
          webhook={webhook}
          onClose={() => setRemoving(false)}
          onDeleted={() => go(linkTo(['webhooks']))}
        />
      ) : null}
    </Page>
  );
}
