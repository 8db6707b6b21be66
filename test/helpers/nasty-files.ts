/*
 * Random files and patterns of grep -E of the same few words, so that many match and many nearly
 * do: for the text by which the search program leaves out files (agent/commands/required-text.ts).
 */
import { KiB, MiB } from '../../shared/units.ts';
import * as fc from './fast-check.ts';

const words = ['needle', 'hay', 'éa', 'ne', 'dle', 'need', 'a.b', '{x}', '(b)', 'lle', '\u{1f600}'];
const quoted = (text: string): string => text.replaceAll(/[.(){}]/gu, String.raw`\$&`);

const repeated = fc
  .tuple(
    fc.constantFrom('e', 'l', 'd', 'é', ' ', String.raw`\.`, '\u{1f600}', '(dle)', '[en]', '.'),
    fc.constantFrom(
      '*',
      '+',
      '?',
      '{0}',
      '{1}',
      '{2}',
      '{0,1}',
      '{,2}',
      '{1,}',
      '*+',
      '+?',
      '{2}*',
    ),
  )
  .map((parts) => parts.join(''));
const others = [
  ...['.', '.*', '^', '$', '[a-e]', '[^e]', '[[:alpha:]]+', String.raw`\w`, String.raw`\s*`],
  ...['(hay|needle)', '(needle)?', String.raw`(e)\1`, '()', '(^|a)', ')', '(', '['],
  ...[String.raw`\b`, String.raw`\<`, String.raw`\|`, '{', '}', '-', '\r', '\t', '\u{feff}'],
];

const plainText = fc
  .array(fc.constantFrom(...words), { minLength: 1, maxLength: 3 })
  .map((parts) => parts.map(quoted).join(''));

/** Patterns, most of which have a text that every match has; some are that text, some not valid. */
export const nastyPattern: fc.Arbitrary<string> = fc.oneof(
  { weight: 1, arbitrary: plainText },
  {
    weight: 4,
    arbitrary: fc
      .tuple(
        fc.constantFrom('', '', '', '', '(?i)'),
        fc.array(
          fc.oneof(
            { weight: 5, arbitrary: fc.constantFrom(...words).map(quoted) },
            { weight: 3, arbitrary: repeated },
            { weight: 1, arbitrary: fc.constantFrom('|', '|', '\n') },
            { weight: 2, arbitrary: fc.constantFrom(...others) },
          ),
          { minLength: 1, maxLength: 5 },
        ),
      )
      .map(([start, parts]) => `${start}${parts.join('')}`),
  },
);

const piece = fc.constantFrom(
  ...[...words, ...words, 'e', 'ee', 'l', 'd', '.', ' ', 'NEEDLE', 'Hay', 'ne\u{301}edle'],
  ...['e\u{301}a', 'É', 'n\u{200d}eedle', '-', '\t', '\u{feff}', '\u{fffd}'],
);
const text = fc
  .tuple(
    fc.array(
      fc.array(piece, { maxLength: 5 }).map((parts) => parts.join('')),
      { maxLength: 6 },
    ),
    fc.constantFrom('\n', '\n', '\r\n'),
    fc.boolean(),
  )
  .map(([lines, newline, isEnded]) => `${lines.join(newline)}${isEnded ? newline : ''}`);

const swapped = (content: string): Buffer => Buffer.from(content, 'utf16le').swap16();
const plain = (content: string): Buffer => Buffer.from(content);
const encodings: ReadonlyArray<(content: string) => Buffer> = [
  ...[plain, plain, plain],
  (content) => Buffer.from(`\u{feff}${content}`),
  (content) => Buffer.from(`\u{feff}${content}`, 'utf16le'),
  (content) => swapped(`\u{feff}${content}`),
  (content) => Buffer.from(content, 'utf16le'), // Without a mark: NULs make it a binary file.
  (content) => Buffer.from(content, 'latin1'), // Mostly not UTF-8.
  (content) => Buffer.from(`\u{feff}`, 'utf16le').subarray(0, 1 + (content.length % 2)), // Cut.
  (content) => Buffer.from(content.replace('e', '\0')),
  (content) => Buffer.from(content).subarray(1),
  // A mark after which there are bytes of another encoding.
  (content) => Buffer.concat([Buffer.from('\u{feff}', 'utf16le'), Buffer.from(content)]),
];

/** Lines of some length in all, the last of which does not end. */
const filler = (bytes: number): Buffer => Buffer.alloc(bytes, `${'n'.repeat(200)} e\n`);

/** A few files; of some the text comes where one reading or comparison ends and the next begins. */
export const nastyFiles: fc.Arbitrary<Buffer[]> = fc
  .tuple(
    fc.array(
      fc.tuple(text, fc.constantFrom(...encodings)).map(([content, encode]) => encode(content)),
      { minLength: 1, maxLength: 12 },
    ),
    fc.array(
      fc
        .tuple(fc.constantFrom(16, 64 * KiB, 128 * KiB), fc.integer({ min: -40, max: 5 }), text)
        .map(([size, offset, content]) =>
          Buffer.concat([filler(Math.max(0, size + offset)), Buffer.from(content)]),
        ),
      { maxLength: 3 },
    ),
    fc
      .tuple(fc.constantFrom(0, 0, 0, MiB), fc.integer({ min: -40, max: 5 }), text)
      .map(([size, offset, content]) =>
        size === 0 ? [] : [Buffer.concat([filler(size + offset), Buffer.from(content)])],
      ),
  )
  .map((kinds) => kinds.flat());
