import { signal } from '@preact/signals';

export interface Notice {
  readonly id: number;
  readonly kind: 'good' | 'bad';
  readonly text: string;
}

const SHOWN_MS = 6_000;
export const notices = signal<readonly Notice[]>([]);
let last = 0;

export function dismiss(id: number): void {
  notices.value = notices.value.filter((notice) => notice.id !== id);
}

/** Tells of something that has happened. Failures stay until they are dismissed. */
export function tell(text: string, kind: Notice['kind'] = 'good'): void {
  last += 1;
  const id = last;
  notices.value = [...notices.value.slice(-3), { id, kind, text }];
  if (kind === 'good') setTimeout(() => dismiss(id), SHOWN_MS);
}

export const messageOf = (error: unknown): string =>
  error instanceof Error ? error.message : String(error);

/** For handlers: begins something, and tells when it fails. */
export function attempt(work: () => Promise<unknown>): void {
  work().catch((error: unknown) => tell(messageOf(error), 'bad'));
}
