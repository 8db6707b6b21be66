import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { berth } from '../lib/berth.ts';
import { text } from '../text.ts';
import { Choice, Copyable, Dialog, Form, type Values } from '../ui/parts.tsx';

const DOWNLOAD_SECONDS = 60;
const HOUR = 3600;

interface ShareProps {
  readonly disk: string;
  readonly file: string;
  readonly onClose: () => void;
}

/** Makes a link with which anybody can download the file for a while. */
export function ShareDialog({ disk, file, onClose }: ShareProps): JSX.Element {
  const [url, setUrl] = useState('');
  const create = async (values: Values): Promise<void> => {
    const expiresIn = Number(values.get('seconds'));
    const link = await (await berth.disks.get(disk)).share({ key: file, expiresIn });
    setUrl(link.url);
  };
  return (
    <Dialog title={text.share.title(file)} onClose={onClose}>
      <p>{text.share.hint}</p>
      {url === '' ? (
        <Form submit={text.share.create} onSubmit={create}>
          <Choice
            label={text.share.for}
            name="seconds"
            value={String(24 * HOUR)}
            options={[
              [String(HOUR), text.share.hour],
              [String(24 * HOUR), text.share.day],
              [String(7 * 24 * HOUR), text.share.week],
            ]}
          />
        </Form>
      ) : (
        <Copyable value={url} label={text.share.link} />
      )}
    </Dialog>
  );
}

/** By a link of a minute: the browser saves the file itself, whatever its size. */
export async function download(disk: string, file: string): Promise<void> {
  const given = { key: file, expiresIn: DOWNLOAD_SECONDS };
  const { url } = await (await berth.disks.get(disk)).share(given);
  const { pathname } = new URL(url);
  const link = document.createElement('a');
  link.href = pathname; // At this origin, by whichever name it was opened.
  link.download = '';
  link.click();
}
