import { useCallback, useLayoutEffect, useRef, useState } from 'preact/hooks';

/** The state of something that a page asks for. */
export interface Loaded<T> {
  /** The last answer, also while a later request fails. */
  readonly data: T | undefined;
  /** Why the last request failed. */
  readonly error: Error | undefined;
  /** Asks again at once. */
  readonly reload: () => void;
  /** Breaks off what is asked, and asks no more until `reload`: for what is being deleted. */
  readonly rest: () => void;
}

interface Options {
  /** Ask again so long after each answer, in milliseconds, while the page is seen. */
  readonly everyMs?: number;
}

const isSame = (a: unknown, b: unknown): boolean => JSON.stringify(a) === JSON.stringify(b);

/**
 * Loads what a page shows, and keeps it current.
 * @param key names what is loaded: another key starts anew
 */
export function useLoaded<T>(
  key: string,
  load: (signal: AbortSignal) => Promise<T>,
  { everyMs }: Options = {},
): Loaded<T> {
  const [state, setState] = useState<{ key: string; data?: T; error?: Error }>({ key });
  const [round, setRound] = useState(0);
  const latest = useRef(load);
  latest.current = load;
  const current = useRef<AbortController>(undefined);

  // Runs as part of leaving the page, not some time after the next one is drawn: what was shown may
  // be deleted by then.
  useLayoutEffect(() => {
    const ended = new AbortController();
    current.current = ended;
    const { signal } = ended;
    const again = async (): Promise<void> => {
      try {
        const data = await latest.current(signal);
        if (signal.aborted) return;
        setState((old) =>
          old.key === key && old.error === undefined && isSame(old.data, data)
            ? old
            : { key, data },
        );
      } catch (error) {
        if (signal.aborted) return;
        setState((old) => ({ ...(old.key === key ? old : { key }), error: error as Error }));
      }
    };
    const loop = async (): Promise<void> => {
      await again();
      if (everyMs === undefined) return;
      while (!signal.aborted) {
        await pause(everyMs, signal);
        await untilSeen(signal);
        if (!signal.aborted) await again();
      }
    };
    loop().catch(() => undefined);
    return () => ended.abort();
  }, [key, round, everyMs]);

  const reload = useCallback(() => setRound((n) => n + 1), []);
  const rest = useCallback(() => current.current?.abort(), []);
  const isOfKey = state.key === key;
  return {
    data: isOfKey ? state.data : undefined,
    error: isOfKey ? state.error : undefined,
    reload,
    rest,
  };
}

const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      resolve();
    });
  });

/** Nobody looks at a hidden tab: it asks for nothing. */
const untilSeen = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    const check = (): void => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener('visibilitychange', check);
      resolve();
    };
    document.addEventListener('visibilitychange', check);
    signal.addEventListener('abort', check);
    check();
  });
