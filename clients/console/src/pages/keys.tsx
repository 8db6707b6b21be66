import type { ApiKey, CreatedApiKey } from '@berth/sdk';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { accountScopes } from '../../../../shared/key-scopes.ts';
import { berth, session } from '../lib/berth.ts';
import { useLoaded } from '../lib/loading.ts';
import { text } from '../text.ts';
import { Shown } from '../ui/loaded.tsx';
import { Button, Choice, Confirm, Field, Form, Page, type Values } from '../ui/parts.tsx';
import { Panel, Secret } from '../ui/parts.tsx';
import { type Column, Table } from '../ui/table.tsx';
import { When } from '../ui/when.tsx';

const POLL_MS = 10_000;

const loadKeys = (signal: AbortSignal): Promise<ApiKey[]> =>
  berth.apiKeys.list({ signal, retries: 1 }).toArray();

const columnsFor = (onDelete: (key: ApiKey) => void): Column<ApiKey>[] => [
  {
    title: text.name,
    cell: ({ id, name }) => (
      <>
        {name} {id === session.value?.keyId ? <span class="tag">{text.keys.own}</span> : null}
      </>
    ),
  },
  {
    title: text.keys.may,
    isExtra: true,
    cell: ({ scopes }) => scopes.map((scope) => text.keys.scopeOf[scope]).join(', '),
  },
  {
    title: text.keys.ending,
    isExtra: true,
    cell: ({ tokenSuffix }) => <code>{`…${tokenSuffix}`}</code>,
  },
  { title: text.disk.created, isExtra: true, cell: ({ createdAt }) => <When at={createdAt} /> },
  {
    title: text.disk.lastUsed,
    isExtra: true,
    cell: ({ lastUsedAt }) => <When at={lastUsedAt} />,
  },
  {
    title: text.actions,
    isActions: true,
    cell: (key) => (
      <Button kind="quiet" label={text.keys.deleteTitle(key.name)} onClick={() => onDelete(key)}>
        {text.delete}
      </Button>
    ),
  },
];

export function KeysPage(): JSX.Element {
  const loaded = useLoaded('keys', loadKeys, { everyMs: POLL_MS });
  const [created, setCreated] = useState<CreatedApiKey>();
  const [removing, setRemoving] = useState<ApiKey>();
  const create = async (values: Values): Promise<void> => {
    const wanted = values.get('scopes').split(' ');
    const scopes = accountScopes.filter((scope) => wanted.includes(scope));
    setCreated(await berth.apiKeys.create({ name: values.get('name'), scopes }));
    loaded.reload();
  };
  return (
    <Page title={text.keys.title}>
      <Panel title={text.keys.create}>
        <p class="muted">{text.keys.hint}</p>
        <Form submit={text.keys.create} onSubmit={create} isRow>
          <Field label={text.name} name="name" required maxLength={100} />
          <Choice
            label={text.keys.may}
            name="scopes"
            value="admin"
            options={Object.entries(text.keys.scopes)}
          />
        </Form>
        {created === undefined ? null : <Secret value={created.token} label={text.keys.key} />}
      </Panel>
      <Shown of={loaded}>
        {(keys) => (
          <Table
            label={text.keys.title}
            columns={columnsFor(setRemoving)}
            rows={keys}
            keyOf={({ id }) => id}
          />
        )}
      </Shown>
      {removing === undefined ? null : (
        <Confirm
          title={text.keys.deleteTitle(removing.name)}
          submit={text.delete}
          onClose={() => setRemoving(undefined)}
          onConfirm={() => berth.apiKeys.delete(removing.id).finally(loaded.reload)}
        >
          <p>{removing.id === session.value?.keyId ? text.keys.deleteOwn : text.keys.deleteText}</p>
        </Confirm>
      )}
    </Page>
  );
}
