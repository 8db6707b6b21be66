import type { JSX } from 'preact';
import type { Loaded } from '../lib/loading.ts';
import { Failure, Loading, Stale } from './parts.tsx';

interface ShownProps<T> {
  readonly of: Loaded<T>;
  readonly children: (data: T) => JSX.Element;
}

/** Shows the loaded value; until it is there, that it is on its way or could not be had. */
export function Shown<T>({ of: { data, error, reload }, children }: ShownProps<T>): JSX.Element {
  if (data !== undefined) {
    return (
      <>
        <Stale error={error} />
        {children(data)}
      </>
    );
  }
  return error === undefined ? <Loading /> : <Failure error={error} retry={reload} />;
}
