import type { DiskInfo, DiskUser } from '@berth/sdk';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { berth } from '../lib/berth.ts';
import { tell } from '../lib/notices.ts';
import { text } from '../text.ts';
import { Button, Confirm, Copyable, Empty, Field, Form, type Values } from '../ui/parts.tsx';
import { Lines, Panel, Secret } from '../ui/parts.tsx';
import { type Column, Table } from '../ui/table.tsx';
import { When } from '../ui/when.tsx';
import { linesOf } from './disks.tsx';

interface Part {
  readonly disk: DiskInfo;
  readonly reload: () => void;
}

const nameOf = ({ nickname, principal, identifier }: DiskUser): string =>
  nickname ?? principal ?? identifier;

function Users({ disk, reload }: Part): JSX.Element {
  const [created, setCreated] = useState<DiskUser>();
  const [removing, setRemoving] = useState<DiskUser>();
  const add = async (values: Values): Promise<void> => {
    const found = await berth.disks.get(disk.id);
    setCreated(await found.addUser({ type: 'token', nickname: values.get('nickname') }));
    reload();
  };
  const remove = async (user: DiskUser): Promise<void> => {
    await (await berth.disks.get(disk.id)).removeUser(user);
    reload();
  };
  const columns: Column<DiskUser>[] = [
    { title: text.name, cell: nameOf },
    { title: text.access.kind, isExtra: true, cell: ({ type }) => type },
    {
      title: text.access.identifier,
      isExtra: true,
      cell: ({ identifier }) => <code>{identifier}</code>,
    },
    { title: text.disk.created, isExtra: true, cell: ({ createdAt }) => <When at={createdAt} /> },
    {
      title: text.actions,
      isActions: true,
      cell: (user) => (
        <Button
          kind="quiet"
          label={text.access.removeTitle(nameOf(user))}
          onClick={() => setRemoving(user)}
        >
          {text.access.remove}
        </Button>
      ),
    },
  ];
  return (
    <Panel title={text.access.users}>
      <p class="muted">{text.access.usersHint}</p>
      <Form submit={text.access.add} onSubmit={add} isRow>
        <Field label={text.access.nickname} name="nickname" required maxLength={255} />
      </Form>
      {created?.token === undefined ? null : (
        <>
          <Copyable value={created.identifier} label={text.access.identifier} />
          <Secret value={created.token} label={text.disk.token} />
        </>
      )}
      {disk.authorizedUsers.length === 0 ? (
        <Empty title={text.access.noUsers} />
      ) : (
        <Table
          label={text.access.users}
          columns={columns}
          rows={disk.authorizedUsers}
          keyOf={({ identifier }) => identifier}
        />
      )}
      {removing === undefined ? null : (
        <Confirm
          title={text.access.removeTitle(nameOf(removing))}
          submit={text.access.remove}
          onConfirm={() => remove(removing)}
          onClose={() => setRemoving(undefined)}
        >
          <p>{text.access.removeText}</p>
        </Confirm>
      )}
    </Panel>
  );
}

function AllowedIps({ disk, reload }: Part): JSX.Element {
  const save = async (values: Values): Promise<void> => {
    await (await berth.disks.get(disk.id)).setAllowedIps(linesOf(values.get('ips')));
    tell(text.access.ipsSaved);
    reload();
  };
  return (
    <Panel title={text.disk.allowedIps}>
      <Form key={disk.allowedIps.join()} submit={text.save} onSubmit={save}>
        <Lines
          label={text.access.addresses}
          name="ips"
          rows={5}
          value={disk.allowedIps.join('\n')}
          placeholder={'203.0.113.7\n10.0.0.0/8'}
          hint={text.disks.ipsHint}
        />
      </Form>
    </Panel>
  );
}

export const AccessView = (part: Part): JSX.Element => (
  <>
    <Users {...part} />
    <AllowedIps {...part} />
  </>
);
