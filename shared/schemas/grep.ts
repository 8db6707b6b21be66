import Type from 'typebox';
import { SCHEMA_LIMITS } from './limits.ts';
import { DIRECTORY_PATH, WITHOUT_NUL } from './patterns.ts';
import { sizeInWords } from '../units.ts';

/** At least 1. A number above the maximum counts as the maximum (docs/api.md, Grep). */
const clamped = (maximum: number, fallback: number, description: string) =>
  Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: Number.MAX_SAFE_INTEGER,
      default: fallback,
      description: `${description} Values above ${maximum} count as ${maximum}.`,
      examples: [fallback],
    }),
  );

/** Body of a grep (docs/api.md, Grep). */
export const RunGrep = Type.Object(
  {
    directory: Type.String({
      maxLength: SCHEMA_LIMITS.mountPathBytesMax,
      documented: { pattern: DIRECTORY_PATH },
      description: 'From the root of the disk; empty or `/`: the root.',
      examples: ['logs'],
    }),
    pattern: Type.String({
      minLength: 1,
      maxLength: SCHEMA_LIMITS.grepPatternBytesMax,
      documented: { pattern: WITHOUT_NUL },
      description:
        'Extended regular expression of GNU grep -E, matched line by line. At most ' +
        `${sizeInWords(SCHEMA_LIMITS.grepPatternBytesMax)} in UTF-8.`,
      examples: ['ERROR|FATAL'],
    }),
    recursive: Type.Optional(
      Type.Boolean({ default: false, description: 'Search subdirectories too.' }),
    ),
    maxDurationSeconds: clamped(
      SCHEMA_LIMITS.grepSecondsMax,
      SCHEMA_LIMITS.grepSecondsMax,
      'Deadline, from the arrival of the request; never later than after ' +
        `${SCHEMA_LIMITS.grepDurationMsMax / 1000} seconds.`,
    ),
    concurrency: clamped(
      SCHEMA_LIMITS.grepConcurrencyMax,
      SCHEMA_LIMITS.grepConcurrencyDefault,
      'Workers at once, at most; never more than the processors that one search may use.',
    ),
    maxResults: clamped(
      SCHEMA_LIMITS.grepResultsMax,
      SCHEMA_LIMITS.grepResultsDefault,
      'Matches after which the search stops.',
    ),
  },
  { title: 'RunGrep' },
);
export type RunGrep = Type.Static<typeof RunGrep>;

export const GrepMatch = Type.Object(
  {
    file: Type.String({
      description: 'From the root of the disk, without a leading slash.',
      examples: ['logs/api.log'],
    }),
    line: Type.Integer({ minimum: 1, description: 'Number of the line.', examples: [12] }),
    text: Type.String({
      description: 'The line without its newline.',
      examples: ['12:00:00 ERROR no route'],
    }),
    truncated: Type.Optional(
      Type.Literal(true, {
        description: `The line is longer than ${sizeInWords(SCHEMA_LIMITS.grepTextBytesMax)} and was cut there.`,
      }),
    ),
  },
  { title: 'GrepMatch' },
);

export type GrepMatches = Type.Static<typeof GrepMatch>[];

const StoppedReason = Type.Enum(
  ['completed', 'incomplete', 'max_results', 'deadline', 'list_failed'],
  { description: 'Whether everything was searched, and if not, why.' },
);
export type StoppedReason = Type.Static<typeof StoppedReason>;

/** The result of a grep (docs/api.md, Grep). */
export const GrepResult = Type.Object(
  {
    matches: Type.Array(GrepMatch, { description: 'In no particular order.' }),
    stoppedReason: StoppedReason,
    filesScanned: Type.Integer({
      minimum: 0,
      description: 'Files that were searched to their end.',
      examples: [240],
    }),
    containersDispatched: Type.Integer({
      minimum: 0,
      description: 'How many containers searched: 0 when the time was over before one had started.',
      examples: [1],
    }),
    computeSecondsUsed: Type.Number({
      minimum: 0,
      description: 'Processor time of the search.',
      examples: [0.05],
    }),
    durationMs: Type.Integer({
      minimum: 0,
      description: 'From arrival to answer.',
      examples: [64],
    }),
    listingMs: Type.Integer({
      minimum: 0,
      description: 'Time spent reading directories.',
      examples: [4],
    }),
    grepMs: Type.Integer({
      minimum: 0,
      description: 'From the start of the first worker to the end of the last one.',
      examples: [31],
    }),
    message: Type.Optional(
      Type.String({
        description: 'Why the search is incomplete, or the directory not listed.',
        examples: ['logs: no such directory'],
      }),
    ),
  },
  { title: 'GrepResult' },
);
export type GrepResult = Type.Static<typeof GrepResult>;
