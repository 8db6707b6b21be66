import type { DiskInfo } from '@berth/sdk';
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { berth } from '../lib/berth.ts';
import { bytes } from '../lib/format.ts';
import { useLoaded } from '../lib/loading.ts';
import { createFolder, deleteObject, type FileEntry, listFolder } from '../lib/objects.ts';
import { linkTo, query } from '../lib/router.ts';
import { quote } from '../lib/shell.ts';
import { begin } from '../lib/uploads.ts';
import { text } from '../text.ts';
import { FileIcon, FolderIcon } from '../ui/icons.tsx';
import { Shown } from '../ui/loaded.tsx';
import { Button, Confirm, Dialog, Empty, type Values } from '../ui/parts.tsx';
import { Field, Form } from '../ui/parts.tsx';
import { type Column, Table } from '../ui/table.tsx';
import { When } from '../ui/when.tsx';
import { fileLink, folderOf } from './disk-search.tsx';
import { FileView } from './file-view.tsx';
import { download, ShareDialog } from './share.tsx';
import { UploadList } from './upload-list.tsx';

const POLL_MS = 5_000;

type Act = { readonly kind: 'rename' | 'delete' | 'share'; readonly entry: FileEntry };

const folderLink = (disk: string, folder: string): string =>
  linkTo(['disks', disk], folder === '' ? {} : { folder });

/** The folders above, each a link. */
function Path({ disk, folder }: { disk: DiskInfo; folder: string }): JSX.Element {
  const names = folder.split('/').filter((name) => name !== '');
  return (
    <nav class="path" aria-label={text.files.path}>
      <a href={folderLink(disk.id, '')}>{disk.name}</a>
      {names.map((name, n) => (
        <span key={names.slice(0, n + 1).join('/')}>
          {' / '}
          <a href={folderLink(disk.id, `${names.slice(0, n + 1).join('/')}/`)}>{name}</a>
        </span>
      ))}
    </nav>
  );
}

/** Runs one command on the disk, which must succeed. */
async function runOn(disk: string, command: string): Promise<void> {
  const { exitCode, stderr } = await (await berth.disks.get(disk)).exec(command);
  if (exitCode !== 0) throw new Error(stderr.trim() || text.run.exitCode(exitCode));
}

/** At once and whatever its size: a rename within the disk, which refuses to replace anything. */
async function rename(disk: string, { key }: FileEntry, to: string): Promise<void> {
  const from = key.replace(/\/$/u, '');
  const [source, target] = [quote(`./${from}`), quote(`./${to}`)];
  const taken = quote(text.files.taken(to));
  await runOn(
    disk,
    `if [ -e ${target} ] || [ -L ${target} ]; then printf %s ${taken} >&2; exit 1; fi; mv -T -- ${source} ${target}`,
  );
}

async function remove(disk: string, { key, isFolder }: FileEntry): Promise<void> {
  if (isFolder) await runOn(disk, `rm -r -- ${quote(`./${key.replace(/\/$/u, '')}`)}`);
  else await deleteObject(disk, key);
}

interface ActDialogProps {
  readonly disk: string;
  readonly act: Act;
  readonly onClose: () => void;
  readonly onDone: () => void;
}

function ActDialog({ disk, act: { kind, entry }, onClose, onDone }: ActDialogProps): JSX.Element {
  if (kind === 'share') return <ShareDialog disk={disk} file={entry.key} onClose={onClose} />;
  if (kind === 'delete') {
    return (
      <Confirm
        title={text.files.deleteTitle(entry.name)}
        submit={text.delete}
        onConfirm={() => remove(disk, entry).finally(onDone)}
        onClose={onClose}
      >
        <p>{entry.isFolder ? text.files.deleteFolder : text.files.deleteFile}</p>
      </Confirm>
    );
  }
  const submit = async (values: Values): Promise<void> => {
    await rename(disk, entry, values.get('name').replace(/^\/+/u, ''));
    onDone();
    onClose();
  };
  return (
    <Dialog title={text.files.renameTitle(entry.name)} onClose={onClose}>
      <Form submit={text.files.rename} onSubmit={submit}>
        <Field
          label={text.files.newPath}
          name="name"
          required
          autofocus
          defaultValue={entry.key.replace(/\/$/u, '')}
        />
      </Form>
    </Dialog>
  );
}

const columnsFor = (disk: string, onAct: (act: Act) => void): Column<FileEntry>[] => [
  {
    title: text.name,
    cell: ({ name, key, isFolder }) => (
      <a class="with-icon" href={isFolder ? folderLink(disk, key) : fileLink(disk, key)}>
        {isFolder ? <FolderIcon /> : <FileIcon />}
        {name}
      </a>
    ),
  },
  {
    title: text.size,
    isNumber: true,
    isExtra: true,
    cell: ({ size, isFolder }) => (isFolder ? '' : bytes(size)),
  },
  {
    title: text.files.modified,
    isExtra: true,
    cell: ({ modified }) => (modified === '' ? '' : <When at={modified} />),
  },
  {
    title: text.actions,
    isActions: true,
    cell: (entry) => (
      <>
        {entry.isFolder ? null : (
          <>
            <Button kind="quiet" onClick={() => download(disk, entry.key)}>
              {text.files.download}
            </Button>
            <Button kind="quiet" onClick={() => onAct({ kind: 'share', entry })}>
              {text.files.share}
            </Button>
          </>
        )}
        <Button kind="quiet" onClick={() => onAct({ kind: 'rename', entry })}>
          {text.files.rename}
        </Button>
        <Button kind="quiet" onClick={() => onAct({ kind: 'delete', entry })}>
          {text.delete}
        </Button>
      </>
    ),
  },
];

interface FolderProps {
  readonly disk: DiskInfo;
  readonly folder: string;
}

/** All of a folder, page by page. */
async function loadFolder(disk: string, folder: string, signal: AbortSignal): Promise<FileEntry[]> {
  const entries: FileEntry[] = [];
  for (let after: string | undefined; ;) {
    const listing = await listFolder(disk, folder, { after, signal });
    entries.push(...listing.entries);
    if (listing.next === undefined) return entries;
    after = listing.next;
  }
}

function Toolbar({ disk, folder, onDone }: FolderProps & { onDone: () => void }): JSX.Element {
  const [isNaming, setNaming] = useState(false);
  const create = async (values: Values): Promise<void> => {
    await createFolder(disk.id, `${folder}${values.get('name')}`);
    setNaming(false);
    onDone();
  };
  return (
    <div class="toolbar">
      <Path disk={disk} folder={folder} />
      <span class="end" />
      <Button onClick={() => setNaming(true)}>{text.files.newFolder}</Button>
      <a class="button" href={linkTo(['disks', disk.id], { file: folder, new: '1' })}>
        {text.files.newFile}
      </a>
      <label class="button main">
        {text.files.upload}
        <input
          class="hidden"
          type="file"
          multiple
          onChange={(event) => {
            begin(disk.id, folder, [...(event.currentTarget.files ?? [])], onDone);
            event.currentTarget.value = '';
          }}
        />
      </label>
      {isNaming ? (
        <Dialog title={text.files.newFolder} onClose={() => setNaming(false)}>
          <Form submit={text.files.create} onSubmit={create}>
            <Field label={text.name} name="name" required autofocus maxLength={255} />
          </Form>
        </Dialog>
      ) : null}
    </div>
  );
}

function Folder({ disk, folder }: FolderProps): JSX.Element {
  const load = (signal: AbortSignal): Promise<FileEntry[]> => loadFolder(disk.id, folder, signal);
  const key = `folder ${disk.id} ${folder}`;
  const loaded = useLoaded(key, load, { everyMs: POLL_MS });
  const { reload } = loaded;
  const [act, setAct] = useState<Act>();
  const [isOver, setOver] = useState(false);
  const drop = (event: DragEvent): void => {
    event.preventDefault();
    setOver(false);
    begin(disk.id, folder, [...(event.dataTransfer?.files ?? [])], reload);
  };
  return (
    <div
      class={`drop ${isOver ? 'over' : ''}`}
      data-drop={text.files.drop}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={drop}
    >
      <Toolbar disk={disk} folder={folder} onDone={reload} />
      <UploadList disk={disk.id} />
      <Shown of={loaded}>
        {(entries) =>
          entries.length === 0 ? (
            <Empty title={text.files.none}>
              <p>{text.files.noneHint}</p>
            </Empty>
          ) : (
            <Table
              label={text.disk.views['']}
              columns={columnsFor(disk.id, setAct)}
              rows={entries}
              keyOf={(entry) => entry.key}
            />
          )
        }
      </Shown>
      {act === undefined ? null : (
        <ActDialog disk={disk.id} act={act} onClose={() => setAct(undefined)} onDone={reload} />
      )}
    </div>
  );
}

export function FilesView({ disk }: { disk: DiskInfo }): JSX.Element {
  const file = query.value.get('file');
  const folder = file === null ? (query.value.get('folder') ?? '') : folderOf(file);
  const isNew = query.value.has('new');
  const line = Number(query.value.get('line')) || undefined;
  if (file === null) return <Folder key={folder} disk={disk} folder={folder} />;
  return (
    <>
      <div class="toolbar">
        <Path disk={disk} folder={folder} />
      </div>
      <FileView
        key={`${file} ${String(isNew)}`}
        disk={disk.id}
        file={file}
        line={line}
        isNew={isNew}
        back={folderLink(disk.id, folder)}
      />
    </>
  );
}
