import type { JSX } from 'preact';
import { ago, moment } from '../lib/format.ts';
import { text } from '../text.ts';

/** A time relative to now, with the exact time as its tooltip; `never` where there is none. */
export const When = ({ at }: { at: string | undefined }): JSX.Element =>
  at === undefined ? (
    <>{text.never}</>
  ) : (
    <time dateTime={at} title={moment(at)}>
      {ago(at)}
    </time>
  );
