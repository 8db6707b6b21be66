import { z } from 'zod';
import { EXCERPT_BYTES, Excerpt } from './excerpt.ts';
import { diskField, encodingField, findDisk } from './fields.ts';
import { contentField } from './files.ts';
import { bytesOf, describePart, partInput, partOutput, readPart, showPart } from './read-part.ts';
import { describeRun, outputFields } from './sandboxes.ts';
import { tool, whileTelling } from './tool.ts';

const LISTED = 50;
const MATCHES = 100;
const MATCHES_MAX = 1_000;
const GREP_SECONDS_MAX = 28;
const LINE_BYTES_MAX = 500;

const keyField = z
  .string()
  .min(1)
  .max(1024)
  .describe('Path of the file, from the root of the disk.');

const diskFields = {
  id: z.string(),
  name: z.string(),
  status: z.string(),
  data_bytes: z.number().optional(),
  created_at: z.string(),
};

interface DiskLike {
  readonly id: string;
  readonly name: string;
  readonly status: string;
  readonly dataSize?: number;
  readonly createdAt: string;
}

/** A disk as tools show it: without the tokens of its users. */
const describeDisk = (info: DiskLike): z.output<z.ZodObject<typeof diskFields>> => ({
  id: info.id,
  name: info.name,
  status: info.status,
  data_bytes: info.dataSize,
  created_at: info.createdAt,
});

const list = tool({
  name: 'disk_list',
  title: 'List disks',
  description: 'The shared disks of the account, oldest first.',
  effect: 'read',
  input: { limit: z.number().int().min(1).max(1_000).default(LISTED) },
  output: { disks: z.array(z.object(diskFields)), is_complete: z.boolean() },
  async run({ limit }, { berth, signal }) {
    const found = [];
    for await (const { info } of berth.disks.list({ signal })) {
      found.push(describeDisk(info));
      if (found.length > limit) break;
    }
    return { data: { disks: found.slice(0, limit), is_complete: found.length <= limit } };
  },
});

const create = tool({
  name: 'disk_create',
  title: 'Create a disk',
  description: 'Creates a shared disk, or finds the one of that name.',
  effect: 'change',
  idempotent: true,
  input: {
    name: z.string().regex(/^[A-Za-z0-9_-]{1,100}$/u, 'must be 1 to 100 of A-Z a-z 0-9 _ -'),
  },
  output: diskFields,
  async run({ name }, { berth, signal }) {
    const { info } = await berth.disks.create({ name }, { signal });
    return { data: describeDisk(info) };
  },
});

const exec = tool({
  name: 'disk_exec',
  title: 'Run a command on a disk',
  description:
    'Runs one bash command as root in the root directory of a disk, in a container of its own without network, for at most two minutes. Any exit code is a result. The command is killed when the call is cancelled. SQLite says “database is locked” of a database in WAL mode that a sandbox has open: close it there, or have it leave WAL mode (PRAGMA journal_mode=DELETE).',
  effect: 'destroy',
  input: { disk: diskField, command: z.string().min(1).max(1_000_000) },
  output: { exit_code: z.number(), ...outputFields },
  async run({ disk, command }, call) {
    const found = await findDisk(call, disk);
    // Without a key, a command ends when its caller hangs up.
    const running = found.exec(command, { signal: call.signal, idempotencyKey: false });
    const result = await whileTelling(call, () => 'the command is running', running);
    const [stdout, stderr] = [Excerpt.of(result.stdout), Excerpt.of(result.stderr)];
    const data = {
      exit_code: result.exitCode,
      ...{ stdout: stdout.text(), stderr: stderr.text() },
      ...{ stdout_bytes: stdout.total, stderr_bytes: stderr.total },
    };
    return { data, text: describeRun({ status: 'completed', ...data }) };
  },
});

const grep = tool({
  name: 'disk_grep',
  title: 'Search a disk',
  description:
    'Searches the files of a directory of a disk for an extended regular expression, many at a time.',
  effect: 'read',
  input: {
    disk: diskField,
    pattern: z.string().min(1).max(10_000).describe('Extended regular expression, as of grep -E.'),
    directory: z.string().min(1).max(1024).default('/').describe('From the root of the disk.'),
    recursive: z.boolean().default(true),
    max_results: z.number().int().min(1).max(MATCHES_MAX).default(MATCHES),
  },
  output: {
    matches: z.array(z.object({ file: z.string(), line: z.number(), text: z.string() })),
    files_scanned: z.number(),
    stopped_reason: z
      .string()
      .describe('completed, incomplete, max_results, deadline, list_failed'),
    message: z.string().optional(),
    shown_until: z.number().describe('How many matches are shown; the rest is left out.'),
  },
  async run({ disk, pattern, directory, recursive, max_results }, call) {
    const found = await findDisk(call, disk);
    const search = {
      ...{ directory, pattern, recursive, maxResults: max_results },
      maxDurationSeconds: GREP_SECONDS_MAX,
    };
    const searching = found.grep(search, { signal: call.signal });
    const result = await whileTelling(call, () => 'the disk is being searched', searching);
    const matches = boundMatches(result.matches);
    return {
      data: {
        ...{ matches, shown_until: matches.length, message: result.message },
        ...{ files_scanned: result.filesScanned, stopped_reason: result.stoppedReason },
      },
    };
  },
});

interface Match {
  readonly file: string;
  readonly line: number;
  readonly text: string;
}

/** The first matches that a model may be given, their lines cut. */
function boundMatches(matches: readonly Match[]): Match[] {
  const shown: Match[] = [];
  let bytes = 0;
  for (const { file, line, text } of matches) {
    const match = { file, line, text: Excerpt.of(text, LINE_BYTES_MAX).text() };
    bytes += Buffer.byteLength(match.text) + Buffer.byteLength(file);
    if (bytes > 2 * EXCERPT_BYTES) break;
    shown.push(match);
  }
  return shown;
}

const read = tool({
  name: 'disk_read_file',
  title: 'Read a file of a disk',
  description: 'Reads a file of a disk, or a part of it; go on at next_offset.',
  effect: 'read',
  input: { disk: diskField, path: keyField, ...partInput },
  output: partOutput,
  async run({ disk, path, offset, length, encoding }, call) {
    const { files } = await findDisk(call, disk);
    const part = await readPart(files, path, { offset, length, signal: call.signal });
    const data = describePart(part, { offset, encoding });
    return { data, text: showPart(data) };
  },
});

const write = tool({
  name: 'disk_write_file',
  title: 'Write a file of a disk',
  description:
    'Writes a file of a disk in one step, in place of one that is there, and makes the directories above it.',
  effect: 'destroy',
  idempotent: true,
  input: { disk: diskField, path: keyField, content: contentField, encoding: encodingField },
  output: { written_bytes: z.number() },
  async run({ disk, path, content, encoding }, call) {
    const { files } = await findDisk(call, disk);
    const bytes = bytesOf(content, encoding);
    await files.write(path, bytes, { signal: call.signal });
    return { data: { written_bytes: bytes.length } };
  },
});

export const diskTools = [list, create, exec, grep, read, write];
