import type { EditorView } from '@codemirror/view';
import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { bytes } from '../lib/format.ts';
import { lineEndOf } from '../lib/line-ends.ts';
import { useLoaded } from '../lib/loading.ts';
import { attempt, tell } from '../lib/notices.ts';
import { headObject, ObjectError, readObject, writeObject } from '../lib/objects.ts';
import { go } from '../lib/router.ts';
import { text } from '../text.ts';
import { Button, Confirm, Empty, Failure, Field, Loading, Panel } from '../ui/parts.tsx';
import { theme } from '../ui/theme.tsx';
import { fileLink } from './disk-search.tsx';
import { download } from './share.tsx';

const MiB = 1024 * 1024;
const TEXT_MAX = 2 * MiB;
const IMAGE_MAX = 32 * MiB;
const ROWS_MAX = 200;
const IMAGES = /\.(?:png|jpe?g|gif|webp|avif|svg|bmp|ico)$/iu;
const TABLES = /\.(?:csv|tsv)$/iu;

type Content =
  | { readonly kind: 'text'; readonly text: string; readonly etag: string | undefined }
  | { readonly kind: 'image'; readonly body: Blob }
  | { readonly kind: 'other'; readonly size: number };

/** The text of a file, or undefined when it is none. */
async function decode(body: Blob): Promise<string | undefined> {
  try {
    const found = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
    const decoded = found.decode(await body.arrayBuffer());
    return decoded.includes('\0') ? undefined : decoded;
  } catch {
    return undefined;
  }
}

async function load(disk: string, file: string): Promise<Content> {
  const { size } = await headObject(disk, file);
  const isImage = IMAGES.test(file);
  if (size > (isImage ? IMAGE_MAX : TEXT_MAX)) return { kind: 'other', size };
  const { body, etag } = await readObject(disk, file);
  if (isImage) return { kind: 'image', body };
  const decoded = await decode(body);
  return decoded === undefined ? { kind: 'other', size } : { kind: 'text', text: decoded, etag };
}

/** Only as an image: scripts in it do not run. */
function Picture({ body, name }: { body: Blob; name: string }): JSX.Element {
  const [url, setUrl] = useState('');
  useEffect(() => {
    const made = URL.createObjectURL(body);
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [body]);
  return <div class="preview">{url === '' ? null : <img src={url} alt={name} />}</div>;
}

/** Values between commas or tabs, quoted ones as in RFC 4180. */
function parseRows(source: string, separator: string): string[][] {
  const rows: string[][] = [[]];
  const pattern =
    separator === '\t'
      ? /"((?:[^"]|"")*)"|([^\t\r\n]+)|(\t)|(\r?\n)/gu
      : /"((?:[^"]|"")*)"|([^,\r\n]+)|(,)|(\r?\n)/gu;
  let value = '';
  for (const [, quoted, plain, isNext, isEnd] of source.matchAll(pattern)) {
    if (quoted !== undefined) value += quoted.replaceAll('""', '"');
    if (plain !== undefined) value += plain;
    if (isNext === undefined && isEnd === undefined) continue;
    rows.at(-1)?.push(value);
    value = '';
    if (isEnd !== undefined) rows.push([]);
    if (rows.length > ROWS_MAX + 1) break;
  }
  if (value !== '' || (rows.at(-1)?.length ?? 0) > 0) rows.at(-1)?.push(value);
  return rows.filter((row) => row.length > 0);
}

function Sheet({ source, name }: { source: string; name: string }): JSX.Element {
  const [head = [], ...rows] = parseRows(source, /tsv$/iu.test(name) ? '\t' : ',');
  return (
    <div class="preview" tabIndex={0} role="region" aria-label={text.files.table(name)}>
      <table>
        <thead>
          <tr>
            {head.map((cell, n) => (
              <th key={n} scope="col">
                {cell}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, ROWS_MAX).map((row, n) => (
            <tr key={n}>
              {row.map((cell, column) => (
                <td key={column}>{cell}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface EditorProps {
  readonly disk: string;
  readonly file: string;
  readonly line: number | undefined;
  readonly content: { readonly text: string; readonly etag: string | undefined };
  readonly isNew: boolean;
  readonly reload: () => void;
}

/** Asks before the page with changes is left. */
function useGuard(isDirty: boolean): void {
  useEffect(() => {
    if (!isDirty) return undefined;
    const ask = (event: BeforeUnloadEvent): void => event.preventDefault();
    addEventListener('beforeunload', ask);
    return () => removeEventListener('beforeunload', ask);
  }, [isDirty]);
}

function useEditor(
  box: { current: HTMLDivElement | null },
  { file, line, content }: EditorProps,
  latest: { current: { onChange: () => void; onSave: () => void } },
): { current: EditorView | undefined } {
  const view = useRef<EditorView>(undefined);
  useEffect(() => {
    let isGone = false;
    const open = async (): Promise<void> => {
      const { openEditor } = await import('../lib/editor.ts');
      if (isGone || box.current === null) return;
      const made = await openEditor({
        ...{ parent: box.current, label: text.files.editor(file), name: file, line },
        // Another theme takes another editor, for the text as it is by now.
        text: view.current?.state.doc.toString() ?? content.text,
        isDark: theme.value === 'dark',
        isReadOnly: lineEndOf(content.text) === undefined,
        onChange: () => latest.current.onChange(),
        onSave: () => latest.current.onSave(),
      });
      view.current = made;
      if (isGone) made.destroy();
    };
    attempt(open);
    return () => {
      isGone = true;
      view.current?.destroy();
    };
  }, [theme.value]);
  return view;
}

function hintOf(isEditable: boolean, isDirty: boolean): string {
  if (!isEditable) return text.files.mixedLineEnds;
  return isDirty ? text.files.unsaved : text.files.editorHint;
}

function Editor(props: EditorProps): JSX.Element {
  const { disk, file, content, isNew, reload } = props;
  const box = useRef<HTMLDivElement>(null);
  const [etag, setEtag] = useState(content.etag);
  const [name, setName] = useState(file);
  const [isDirty, setDirty] = useState(false);
  const [isConflict, setConflict] = useState(false);
  useGuard(isDirty);
  const lineEnd = lineEndOf(content.text);
  const write = async (ifMatch: string | undefined): Promise<void> => {
    if (lineEnd === undefined) return;
    const body = view.current?.state.doc.sliceString(0, undefined, lineEnd) ?? '';
    try {
      setEtag(await writeObject(disk, name, body, ifMatch));
      setDirty(false);
      setConflict(false);
      tell(text.files.saved(name));
      if (isNew) go(fileLink(disk, name), { replace: true });
    } catch (error) {
      const isTaken = error instanceof ObjectError && [404, 412].includes(error.status);
      if (!isTaken) throw error;
      setConflict(true);
    }
  };
  const save = (): Promise<void> => write(etag);
  const latest = useRef({ onChange: () => setDirty(true), onSave: () => attempt(save) });
  latest.current = { onChange: () => setDirty(true), onSave: () => attempt(save) };
  const view = useEditor(box, props, latest);
  return (
    <>
      {isNew ? (
        <Field
          label={text.files.newPath}
          name="name"
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
        />
      ) : null}
      <div class="editor" ref={box} />
      <div class="dialog-actions">
        <span class="say muted" role="status">
          {hintOf(lineEnd !== undefined, isDirty)}
        </span>
        <Button kind="main" disabled={!isDirty && !isNew} onClick={save}>
          {text.save}
        </Button>
      </div>
      {isConflict ? (
        <Confirm
          title={text.files.conflictTitle}
          submit={text.files.overwrite}
          onConfirm={() => write('any')}
          onClose={() => setConflict(false)}
        >
          <p>{isNew ? text.files.taken(name) : text.files.conflict}</p>
          {isNew ? null : (
            <Button
              onClick={() => {
                setConflict(false);
                reload();
              }}
            >
              {text.files.takeTheirs}
            </Button>
          )}
        </Confirm>
      ) : null}
    </>
  );
}

interface FileProps {
  readonly disk: string;
  readonly file: string;
  readonly line: number | undefined;
  readonly isNew: boolean;
  /** The folder that it is in. */
  readonly back: string;
}

const NEW: Content = { kind: 'text', text: '', etag: undefined };

function Shown(props: FileProps & { content: Content; reload: () => void }): JSX.Element {
  const { disk, file, line, isNew, content, reload } = props;
  const [isTable, setTable] = useState(TABLES.test(file) && line === undefined);
  if (content.kind === 'image') return <Picture body={content.body} name={file} />;
  if (content.kind === 'other') {
    return (
      <Empty title={text.files.noPreview(bytes(content.size))}>
        <Button onClick={() => download(disk, file)}>{text.files.download}</Button>
      </Empty>
    );
  }
  if (isTable) {
    return (
      <>
        <Sheet source={content.text} name={file} />
        <div class="dialog-actions">
          <Button onClick={() => setTable(false)}>{text.files.edit}</Button>
        </div>
      </>
    );
  }
  return (
    <Editor
      key={content.etag}
      disk={disk}
      file={file}
      line={line}
      content={content}
      isNew={isNew}
      reload={reload}
    />
  );
}

/** Shows a file: its text to be edited, its picture or table to be looked at. */
export function FileView(props: FileProps): JSX.Element {
  const { disk, file, isNew, back } = props;
  const { data, error, reload } = useLoaded(`file ${disk} ${file}`, async () =>
    isNew ? NEW : load(disk, file),
  );
  const title = isNew ? text.files.newFile : (file.split('/').at(-1) ?? file);
  return (
    <Panel
      title={title}
      actions={
        <>
          {isNew ? null : (
            <Button onClick={() => download(disk, file)}>{text.files.download}</Button>
          )}
          <a class="button" href={back}>
            {text.close}
          </a>
        </>
      }
    >
      {data === undefined ? (
        error === undefined ? (
          <Loading />
        ) : (
          <Failure error={error} retry={reload} />
        )
      ) : (
        <Shown {...props} content={data} reload={reload} />
      )}
    </Panel>
  );
}
