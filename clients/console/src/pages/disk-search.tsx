import type { DiskInfo, GrepMatch, GrepResult } from '@berth/sdk';
import { signal } from '@preact/signals';
import type { ComponentChildren, JSX } from 'preact';
import { berth } from '../lib/berth.ts';
import { duration } from '../lib/format.ts';
import { linkTo } from '../lib/router.ts';
import { text } from '../text.ts';
import { Empty, Field, Form, Panel, type Values } from '../ui/parts.tsx';

interface Search {
  readonly disk: string;
  readonly directory: string;
  readonly pattern: string;
  /** Those that were found until now. */
  readonly matches: readonly GrepMatch[];
  /** Absent while the search runs. */
  readonly result?: GrepResult;
}

const RESULTS_MAX = 500;
const LINE_MAX = 400;
/** Stays while its matches are looked at. */
const last = signal<Search | undefined>(undefined);

async function search(disk: DiskInfo, values: Values): Promise<void> {
  const pattern = values.get('pattern');
  const directory = values.get('directory');
  const given = { directory, pattern, recursive: true, maxResults: RESULTS_MAX };
  const begun: Search = { disk: disk.id, directory, pattern, matches: [] };
  const found: GrepMatch[] = [];
  last.value = begun;
  let current: Search = begun;
  // Another search may have begun meanwhile, of another disk.
  const show = (state: Partial<Search>): void => {
    if (last.value !== current) return;
    current = { ...current, ...state };
    last.value = current;
  };
  const onMatches = (matches: GrepMatch[]): void => {
    found.push(...matches);
    show({ matches: found });
  };
  try {
    const result = await (await berth.disks.get(disk.id)).grep(given, { onMatches });
    show({ result });
  } catch (error) {
    if (last.value === current) last.value = undefined;
    throw error;
  }
}

/** The folder that a file is in, with its slash. */
export const folderOf = (key: string): string => key.slice(0, key.lastIndexOf('/') + 1);

/** Where a file is opened, at a line. */
export const fileLink = (disk: string, key: string, line?: number): string =>
  linkTo(['disks', disk], { file: key, ...(line === undefined ? {} : { line: String(line) }) });

function summaryOf({ matches, result }: Search): string {
  if (result === undefined) return text.search.running(matches.length);
  const { stoppedReason, message = '', filesScanned, durationMs } = result;
  const why = stoppedReason === 'completed' ? '' : text.search.stopped[stoppedReason];
  const figures = text.search.summary(matches.length, filesScanned, duration(durationMs));
  return [figures, why, message].filter(Boolean).join(' ');
}

/** The expression of a pattern; undefined where the browser's syntax is another one than grep's. */
function expressionOf(pattern: string): RegExp | undefined {
  if (/\[[.:=]|\\[<>`']/u.test(pattern)) return undefined;
  try {
    return new RegExp(pattern, 'g');
  } catch {
    return undefined;
  }
}

/** A line with its matches marked. */
function marked(line: string, pattern: string): ComponentChildren {
  const expression = expressionOf(pattern);
  if (expression === undefined) return line;
  const parts: ComponentChildren[] = [];
  let end = 0;
  for (const { 0: match, index } of line.matchAll(expression)) {
    if (match === '') continue;
    parts.push(line.slice(end, index), <mark key={index}>{match}</mark>);
    end = index + match.length;
  }
  return [...parts, line.slice(end)];
}

function Matches(shown: Search): JSX.Element {
  const { disk, pattern, matches, result } = shown;
  const sorted = [...matches].sort((a, b) => a.file.localeCompare(b.file) || a.line - b.line);
  const files = Object.entries(Object.groupBy(sorted, ({ file }) => file));
  return (
    <div>
      <p class="muted" role="status">
        {summaryOf(shown)}
      </p>
      {sorted.length === 0 ? (
        result === undefined ? null : (
          <Empty title={text.search.none} />
        )
      ) : (
        <div class="matches">
          {files.map(([file, lines = []]) => (
            <section key={file}>
              <h3>
                <a href={fileLink(disk, file)}>{file}</a>
              </h3>
              <ul>
                {lines.map(({ line, text: found }) => (
                  <li key={line}>
                    <a href={fileLink(disk, file, line)} aria-label={`${file}:${line}`}>
                      {line}
                    </a>
                    <code>{marked(found.slice(0, LINE_MAX), pattern)}</code>
                  </li>
                ))}
              </ul>
            </section>
          ))}
        </div>
      )}
    </div>
  );
}

export function SearchView({ disk }: { disk: DiskInfo }): JSX.Element {
  const found = last.value?.disk === disk.id ? last.value : undefined;
  return (
    <Panel title={text.search.title}>
      <Form submit={text.search.submit} onSubmit={(values) => search(disk, values)} isRow>
        <Field
          label={text.search.pattern}
          name="pattern"
          class="mono"
          required
          defaultValue={found?.pattern ?? ''}
          placeholder="TODO|FIXME"
        />
        <Field
          label={text.search.directory}
          name="directory"
          defaultValue={found?.directory ?? ''}
          placeholder="/"
        />
      </Form>
      {found === undefined ? <Empty title={text.search.hint} /> : <Matches {...found} />}
    </Panel>
  );
}
