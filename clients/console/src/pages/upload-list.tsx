import type { JSX } from 'preact';
import { bytes } from '../lib/format.ts';
import { continueUpload, dismissUpload, stop, type Upload, uploads } from '../lib/uploads.ts';
import { text } from '../text.ts';
import { Button } from '../ui/parts.tsx';

const Row = ({ of }: { of: Upload }): JSX.Element => (
  <li>
    <span>{of.key}</span>
    <span class="muted">
      {of.state === 'stopped'
        ? text.files.stopped(of.problem)
        : text.files.progress(bytes(of.sent), bytes(of.file.size))}
    </span>
    <span>
      {of.state === 'running' ? (
        <Button kind="quiet" onClick={() => stop(of)}>
          {text.files.stop}
        </Button>
      ) : (
        <>
          <Button kind="quiet" onClick={() => continueUpload(of)}>
            {text.files.continueUpload}
          </Button>
          <Button kind="quiet" onClick={() => dismissUpload(of)}>
            {text.dismiss}
          </Button>
        </>
      )}
    </span>
    <progress value={of.sent} max={Math.max(1, of.file.size)} aria-label={of.key} />
  </li>
);

export function UploadList({ disk }: { disk: string }): JSX.Element | null {
  const shown = uploads.value.filter((each) => each.disk === disk);
  if (shown.length === 0) return null;
  return (
    <ul class="uploads" aria-label={text.files.uploads}>
      {shown.map((each) => (
        <Row key={each.id} of={each} />
      ))}
    </ul>
  );
}
