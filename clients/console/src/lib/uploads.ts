import { signal } from '@preact/signals';
import { text } from '../text.ts';
import { messageOf, tell } from './notices.ts';
import { upload } from './upload.ts';

/** An upload as it is shown. */
export interface Upload {
  readonly id: number;
  readonly disk: string;
  readonly key: string;
  readonly file: File;
  readonly sent: number;
  readonly state: 'running' | 'stopped';
  readonly problem: string;
  readonly controller: AbortController;
  readonly onDone: () => void;
}

/** All uploads of this window; they continue while the user visits other pages. */
export const uploads = signal<readonly Upload[]>([]);
let last = 0;

function change(id: number, changed: Partial<Upload>): void {
  uploads.value = uploads.value.map((each) => (each.id === id ? { ...each, ...changed } : each));
}

const forget = (id: number): void => {
  uploads.value = uploads.value.filter((each) => each.id !== id);
};

async function run({ id, disk, key, file, controller, onDone }: Upload): Promise<void> {
  const { signal: stopped } = controller;
  try {
    const onProgress = (sent: number): void => change(id, { sent });
    await upload({ disk, key, file, signal: stopped, onProgress });
    forget(id);
    tell(text.files.uploaded(file.name));
    onDone();
  } catch (error) {
    const problem = stopped.aborted ? '' : messageOf(error);
    controller.abort(); // The other parts, too.
    change(id, { state: 'stopped', problem });
  }
}

const start = (added: Upload): void => {
  run(added).catch(() => undefined);
};

/** Puts files into a folder. */
export function begin(
  disk: string,
  folder: string,
  files: readonly File[],
  onDone: () => void,
): void {
  for (const file of files) {
    last += 1;
    const added: Upload = {
      ...{ id: last, disk, file, onDone, sent: 0, state: 'running', problem: '' },
      key: `${folder}${file.name}`,
      controller: new AbortController(),
    };
    uploads.value = [...uploads.value, added];
    start(added);
  }
}

/** Stops an upload; parts of a large file that have arrived are kept. */
export const stop = ({ controller }: Upload): void => controller.abort();

/** Continues an upload that was stopped, or has failed. */
export function continueUpload(stopped: Upload): void {
  const again: Upload = {
    ...stopped,
    state: 'running',
    problem: '',
    controller: new AbortController(),
  };
  change(stopped.id, again);
  start(again);
}

export const dismissUpload = ({ id }: Upload): void => forget(id);

addEventListener('beforeunload', (event) => {
  if (uploads.value.some(({ state }) => state === 'running')) event.preventDefault();
});
