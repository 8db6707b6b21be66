import type { SandboxFile } from '@berth/sdk';
import { z } from 'zod';
import { defined, encodingField, findSandbox, pathField, sandboxField } from './fields.ts';
import { bytesOf, describePart, partInput, partOutput, readPart, showPart } from './read-part.ts';
import { tool } from './tool.ts';

const LISTED = 200;
const LISTED_MAX = 1_000;
const CONTENT_LENGTH_MAX = 4 * 1024 * 1024;

export const contentField = z
  .string()
  .max(CONTENT_LENGTH_MAX)
  .describe('What the file is to contain, at most 4 MiB; write larger ones with commands.');

const fileFields = {
  path: z.string(),
  type: z.string().describe('file, directory, link, fifo, socket, block_device, character_device'),
  size: z.number(),
  mode: z.string().describe('Permissions, in octal.'),
  uid: z.number(),
  gid: z.number(),
  modified_at: z.string(),
  target: z.string().optional().describe('Where a link leads.'),
};

const describeFile = (file: SandboxFile): z.output<z.ZodObject<typeof fileFields>> => ({
  path: file.path,
  type: file.type,
  size: file.size,
  mode: file.mode,
  uid: file.uid,
  gid: file.gid,
  modified_at: file.modified_at,
  target: file.target,
});

const read = tool({
  name: 'file_read',
  title: 'Read a file',
  description: 'Reads a file of a running sandbox, or a part of it; go on at next_offset.',
  effect: 'read',
  input: { sandbox: sandboxField, path: pathField, ...partInput },
  output: partOutput,
  async run({ sandbox, path, offset, length, encoding }, call) {
    const { files } = await findSandbox(call, sandbox);
    const part = await readPart(files, path, { offset, length, signal: call.signal });
    const data = describePart(part, { offset, encoding });
    return { data, text: showPart(data) };
  },
});

const write = tool({
  name: 'file_write',
  title: 'Write a file',
  description:
    'Writes a file of a running sandbox in one step, in place of one that is there, and makes the directories above it.',
  effect: 'destroy',
  idempotent: true,
  input: {
    ...{ sandbox: sandboxField, path: pathField, content: contentField, encoding: encodingField },
    mode: z
      .string()
      .regex(/^0?[0-7]{3,4}$/u, 'must be octal, such as 0755')
      .optional()
      .describe('Permissions, in octal; 0644 for a new one.'),
  },
  output: fileFields,
  async run({ sandbox, path, content, encoding, mode }, call) {
    const { files } = await findSandbox(call, sandbox);
    const options = { ...defined({ mode }), parents: true, signal: call.signal };
    return { data: describeFile(await files.write(path, bytesOf(content, encoding), options)) };
  },
});

const list = tool({
  name: 'file_list',
  title: 'List a directory',
  description: 'What is in a directory of a running sandbox, sorted by path.',
  effect: 'read',
  input: {
    ...{ sandbox: sandboxField, path: pathField },
    recursive: z.boolean().default(false).describe('Also what is in the directories below it.'),
    limit: z.number().int().min(1).max(LISTED_MAX).default(LISTED),
  },
  output: {
    files: z.array(z.object(fileFields)),
    is_complete: z.boolean().describe('Whether these are all; else list a directory below it.'),
  },
  async run({ sandbox, path, recursive, limit }, call) {
    const { files } = await findSandbox(call, sandbox);
    const found: SandboxFile[] = [];
    // Asking for more than is shown tells whether there are more.
    for await (const each of files.list(path, {
      recursive,
      limit: limit + 1,
      signal: call.signal,
    })) {
      found.push(each);
      if (found.length > limit) break;
    }
    const shown = found.slice(0, limit).map(describeFile);
    return { data: { files: shown, is_complete: found.length <= limit } };
  },
});

const stat = tool({
  name: 'file_stat',
  title: 'Show what is at a path',
  description: 'Type, size, mode, owner and time of what is at a path of a running sandbox.',
  effect: 'read',
  input: { sandbox: sandboxField, path: pathField },
  output: fileFields,
  async run({ sandbox, path }, call) {
    const { files } = await findSandbox(call, sandbox);
    return { data: describeFile(await files.stat(path, { follow: false, signal: call.signal })) };
  },
});

const move = tool({
  name: 'file_move',
  title: 'Move a file',
  description: 'Moves or renames a file or directory of a running sandbox, in one step.',
  effect: 'destroy',
  input: {
    ...{ sandbox: sandboxField, from: pathField, to: pathField },
    overwrite: z.boolean().default(false).describe('Replace what is there.'),
  },
  output: fileFields,
  async run({ sandbox, from, to, overwrite }, call) {
    const { files } = await findSandbox(call, sandbox);
    const moved = await files.move(from, to, { overwrite, signal: call.signal });
    return { data: describeFile(moved) };
  },
});

const remove = tool({
  name: 'file_delete',
  title: 'Delete a file',
  description: 'Deletes a file, a link or a directory of a running sandbox.',
  effect: 'destroy',
  input: {
    ...{ sandbox: sandboxField, path: pathField },
    recursive: z.boolean().default(false).describe('A directory goes with all that is in it.'),
  },
  output: { deleted: z.string() },
  async run({ sandbox, path, recursive }, call) {
    const { files } = await findSandbox(call, sandbox);
    await files.remove(path, { recursive, signal: call.signal });
    return { data: { deleted: path } };
  },
});

export const fileTools = [read, write, list, stat, move, remove];
