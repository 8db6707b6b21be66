import { type ImageInfo, NotFoundError } from '@berth/sdk';
import type { JSX } from 'preact';
import { berth } from '../lib/berth.ts';
import { bytes } from '../lib/format.ts';
import { useLoaded } from '../lib/loading.ts';
import { go, linkTo } from '../lib/router.ts';
import { text } from '../text.ts';
import { Shown } from '../ui/loaded.tsx';
import { Button, Empty, Field, Form, Page, Panel, Status, type Values } from '../ui/parts.tsx';
import { type Column, Table } from '../ui/table.tsx';
import { When } from '../ui/when.tsx';

const POLL_MS = 2_000;
const KEPT = 'berth:images';
const KEPT_MAX = 50;

/**
 * The API has no list of images: these are the ids of those that were asked for in this browser.
 */
const kept = (): string[] => (localStorage.getItem(KEPT) ?? '').split(' ').filter(Boolean);

const keep = (ids: readonly string[]): void =>
  localStorage.setItem(KEPT, [...new Set(ids)].slice(0, KEPT_MAX).join(' '));

/** Leaves out images that another account asked for in this browser, and those that are gone. */
async function loadImages(signal: AbortSignal): Promise<ImageInfo[]> {
  const find = async (id: string): Promise<ImageInfo[]> => {
    try {
      return [(await berth.images.get(id, { signal, retries: 1 })).info];
    } catch (error) {
      if (error instanceof NotFoundError) return [];
      throw error;
    }
  };
  return (await Promise.all(kept().map(find))).flat();
}

async function build(values: Values): Promise<void> {
  const username = values.get('user');
  const password = values.get('password');
  const image = await berth.images.build({
    source: values.get('source').trim(),
    ...(username === '' ? {} : { registry_auth: { username, password } }),
  });
  keep([image.id, ...kept()]);
}

function stateOf({ progress, failure_message: failure }: ImageInfo): string {
  if (failure !== undefined) return failure;
  if (progress === undefined) return '';
  const { step, bytes_done: done, bytes_total: total } = progress;
  return total === 0 ? step : text.images.progress(step, bytes(done), bytes(total));
}

async function createFrom({ image_id: image }: ImageInfo): Promise<void> {
  const { id } = await berth.sandboxes.create({ image_id: image }, { wait: false });
  go(linkTo(['sandboxes', id]));
}

const COLUMNS: Column<ImageInfo>[] = [
  {
    title: text.images.source,
    cell: ({ source, private: isPrivate }) => (
      <>
        {source} {isPrivate ? <span class="tag">{text.images.private}</span> : null}
      </>
    ),
  },
  { title: text.status, cell: ({ status }) => <Status of={status} /> },
  { title: text.run.result, isExtra: true, cell: stateOf },
  {
    title: text.images.digest,
    isExtra: true,
    cell: ({ digest }) => <span class="mono">{digest?.slice(0, 19) ?? '–'}</span>,
  },
  { title: text.images.updated, isExtra: true, cell: (each) => <When at={each.updated_at} /> },
  {
    title: text.actions,
    isActions: true,
    cell: (image) => (
      <Button kind="quiet" disabled={image.status !== 'ready'} onClick={() => createFrom(image)}>
        {text.images.use}
      </Button>
    ),
  },
];

export function ImagesPage(): JSX.Element {
  const loaded = useLoaded('images', loadImages, { everyMs: POLL_MS });
  return (
    <Page title={text.images.title}>
      <Panel title={text.images.build}>
        <p class="muted">{text.images.hint}</p>
        <Form
          submit={text.images.submit}
          onSubmit={(values) => build(values).finally(loaded.reload)}
          isRow
        >
          <Field label={text.images.source} name="source" required placeholder="python:3.13-slim" />
          <Field label={text.images.user} name="user" />
          <Field label={text.images.password} name="password" type="password" />
        </Form>
      </Panel>
      <Shown of={loaded}>
        {(images) =>
          images.length === 0 ? (
            <Empty title={text.images.none}>
              <p>{text.images.noneHint}</p>
            </Empty>
          ) : (
            <Table
              label={text.images.title}
              columns={COLUMNS}
              rows={images}
              keyOf={(each) => each.image_id}
            />
          )
        }
      </Shown>
    </Page>
  );
}
