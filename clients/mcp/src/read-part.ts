import type { FileDownload } from '@berth/sdk';
import { z } from 'zod';
import { wholeCharacters } from './excerpt.ts';
import { encodingField } from './fields.ts';

/* Reading a part of a file, of a sandbox or of a disk, as text or as base64. */

const KIB = 1024;
const PART_BYTES = 64 * KIB;
const PART_BYTES_MAX = 256 * KIB;

export const partInput = {
  offset: z.number().int().min(0).default(0).describe('The first byte wanted.'),
  length: z
    .number()
    .int()
    .min(1)
    .max(PART_BYTES_MAX)
    .default(PART_BYTES)
    .describe('How many bytes at most.'),
  encoding: encodingField,
};

export const partOutput = {
  content: z.string(),
  encoding: z.enum(['text', 'base64']),
  size: z.number().optional().describe('Of the whole file, in bytes, where it is known.'),
  next_offset: z.number().describe('Behind the last byte of the content.'),
  is_end: z.boolean().describe('Whether the file ends there.'),
};

/** The files of a sandbox or of a disk. */
interface FileSource {
  read(
    path: string,
    options: { readonly offset?: number; readonly signal?: AbortSignal },
  ): Promise<FileDownload>;
}

interface Part {
  readonly bytes: Buffer;
  /** Size of the whole file; undefined when the server did not say it. */
  readonly size: number | undefined;
  /** Whether the file ends with it. */
  readonly isEnd: boolean;
}

/** Reads up to `length` bytes of a file from an offset on. Only these are held in memory. */
export async function readPart(
  files: FileSource,
  path: string,
  { offset, length, signal }: { offset: number; length: number; signal: AbortSignal },
): Promise<Part> {
  // Without a range, so that it may be empty.
  const file = await files.read(path, { offset, signal });
  const pieces: Uint8Array[] = [];
  let total = 0;
  for await (const piece of file) {
    pieces.push(piece.slice(0, length - total));
    total += piece.length;
    if (total > length) break; // With one byte more than is wanted, so that the end is known.
  }
  return { bytes: Buffer.concat(pieces), size: file.size, isEnd: total <= length };
}

/** Not UTF-8, though it was asked for as text. */
class NotText extends Error {}

/** @returns the text; undefined when the bytes are no UTF-8 */
export function textOf(bytes: Uint8Array): string | undefined {
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
    return text.includes('\0') ? undefined : text;
  } catch {
    return undefined;
  }
}

/** A part as tools answer it. Text ends with a whole character. @throws NotText */
export function describePart(
  { bytes, size, isEnd }: Part,
  { offset, encoding }: { offset: number; encoding: 'text' | 'base64' },
): z.output<z.ZodObject<typeof partOutput>> {
  if (encoding === 'base64') {
    const next_offset = offset + bytes.length;
    return { content: bytes.toString('base64'), encoding, size, next_offset, is_end: isEnd };
  }
  const whole = isEnd ? bytes : bytes.subarray(0, wholeCharacters(bytes));
  const content = textOf(whole);
  if (content === undefined) {
    throw new NotText('the file is not text in UTF-8: read it with encoding base64');
  }
  const next_offset = offset + whole.length;
  return { content, encoding, size, next_offset, is_end: isEnd };
}

/** The text block of the answer: the content, and how to go on. */
export const showPart = (part: z.output<z.ZodObject<typeof partOutput>>): string =>
  part.is_end
    ? part.content
    : `${part.content}\n[… ${sizeNote(part)}go on at offset ${part.next_offset} …]`;

const sizeNote = ({ size }: { readonly size?: number | undefined }): string =>
  size === undefined ? '' : `${size} bytes in all; `;

/** The bytes of a tool's content. */
export const bytesOf = (content: string, encoding: 'text' | 'base64'): Buffer =>
  Buffer.from(content, encoding === 'text' ? 'utf8' : 'base64');
