import type { ComponentChildren, JSX } from 'preact';
import { useRef } from 'preact/hooks';
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

interface TogetherProps {
  readonly of: readonly Pick<Loaded<unknown>, 'data' | 'error'>[];
  readonly children: ComponentChildren;
}

/**
 * Shows parts of a page once each of them has an answer, so that none moves the others when it
 * comes.
 */
export function Together({ of, children }: TogetherProps): JSX.Element {
  const wasComplete = useRef(false);
  wasComplete.current ||= of.every(({ data, error }) => (data ?? error) !== undefined);
  return wasComplete.current ? <>{children}</> : <Loading />;
}
