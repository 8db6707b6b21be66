import type { JSX } from 'preact';
import { ago, moment } from '../lib/format.ts';
import { text } from '../text.ts';

/** A moment as people say it, with the exact one for who points at it; without one, `never`. */
export const When = ({ at }: { at: string | undefined }): JSX.Element =>
  at === undefined ? (
    <>{text.never}</>
  ) : (
    <time dateTime={at} title={moment(at)}>
      {ago(at)}
    </time>
  );
