import Type from 'typebox';
import { LIMITS } from '../limits.ts';

/** At least 1. A number above the maximum counts as the maximum (docs/api.md, Grep). */
const clamped = (maximum: number, fallback: number, description: string) =>
  Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: Number.MAX_SAFE_INTEGER,
      default: fallback,
      description: `${description} Values above ${maximum} count as ${maximum}.`,
    }),
  );

/** Body of a grep (docs/api.md, Grep). */
export const RunGrep = Type.Object({
  directory: Type.String({
    maxLength: LIMITS.mountPathBytesMax,
    description: 'From the root of the disk; empty or `/`: the root.',
  }),
  pattern: Type.String({
    minLength: 1,
    maxLength: LIMITS.grepPatternBytesMax,
    description:
      'Extended regular expression of GNU grep -E, matched line by line. At most 64 KiB.',
  }),
  recursive: Type.Optional(
    Type.Boolean({ default: false, description: 'Search subdirectories too.' }),
  ),
  maxDurationSeconds: clamped(
    LIMITS.grepSecondsMax,
    LIMITS.grepSecondsMax,
    'Deadline, from the arrival of the request; never later than after 28 seconds.',
  ),
  concurrency: clamped(
    LIMITS.grepConcurrencyMax,
    LIMITS.grepConcurrencyDefault,
    'Workers at once, at most; never more than the processors that one search may use.',
  ),
  maxResults: clamped(
    LIMITS.grepResultsMax,
    LIMITS.grepResultsDefault,
    'Matches after which the search stops.',
  ),
});
export type RunGrep = Type.Static<typeof RunGrep>;

export const GrepMatch = Type.Object({
  file: Type.String({ description: 'From the root of the disk, without a leading slash.' }),
  line: Type.Integer({ minimum: 1 }),
  text: Type.String({ description: 'The line without its newline.' }),
  truncated: Type.Optional(
    Type.Literal(true, { description: 'The line is longer than 64 KiB and was cut there.' }),
  ),
});

const StoppedReason = Type.Enum(
  ['completed', 'incomplete', 'max_results', 'deadline', 'list_failed'],
  { description: 'Whether everything was searched, and if not, why.' },
);
export type StoppedReason = Type.Static<typeof StoppedReason>;

/** The result of a grep (docs/api.md, Grep). */
export const GrepResult = Type.Object({
  matches: Type.Array(GrepMatch),
  stoppedReason: StoppedReason,
  filesScanned: Type.Integer({ minimum: 0, description: 'Files that were searched to their end.' }),
  containersDispatched: Type.Integer({ minimum: 0 }),
  computeSecondsUsed: Type.Number({ minimum: 0, description: 'Processor time of the search.' }),
  durationMs: Type.Integer({ minimum: 0, description: 'From arrival to answer.' }),
  listingMs: Type.Integer({ minimum: 0, description: 'Time spent reading directories.' }),
  grepMs: Type.Integer({
    minimum: 0,
    description: 'From the start of the first worker to the end of the last one.',
  }),
  message: Type.Optional(
    Type.String({ description: 'Why the search is incomplete, or the directory not listed.' }),
  ),
});
export type GrepResult = Type.Static<typeof GrepResult>;
