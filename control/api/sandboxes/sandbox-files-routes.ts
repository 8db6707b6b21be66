import type { ErrorCode } from '../../../shared/errors.ts';
import { refusalsOf } from '../../../shared/sandbox-lifecycle.ts';
import { success, successPage } from '../../../shared/schemas/common.ts';
import { SandboxPath } from '../../../shared/schemas/sandbox.ts';
import {
  CreateDirectory,
  FileQuery,
  ListFilesQuery,
  MoveFile,
  RemoveFileQuery,
  SandboxFile,
  SandboxFileList,
  WatchFilesQuery,
  WriteFileQuery,
} from '../../../shared/schemas/sandbox-file.ts';
import { SANDBOX_HOST_ERRORS } from '../../http/route-errors.ts';
import { route } from '../../http/route.ts';
import { pathOfBody, pathOfQuery } from './path-bytes.ts';
import {
  listSandboxFiles,
  makeSandboxDirectory,
  moveSandboxFile,
  openSandboxFile,
  removeSandboxFile,
  statSandboxFile,
  watchSandboxFiles,
  writeSandboxFile,
} from './sandbox-files.ts';

const tag = 'Sandbox files';
const files = '/api/sandboxes/{sid}/files';

/** Errors that every one of these can answer besides its own. */
const common: readonly ErrorCode[] = [
  'bad_request',
  'not_found',
  'not_a_directory',
  'link_not_followed',
  'permission_denied',
  'file_busy',
  'rate_limited',
  ...refusalsOf('connect'),
  ...SANDBOX_HOST_ERRORS,
];
const writing: readonly ErrorCode[] = [...common, 'no_space', 'file_exists', 'is_a_directory'];

const readSandboxFile = route({
  method: 'get',
  path: files,
  operationId: 'readSandboxFile',
  scope: 'read',
  summary: 'Read a file of a running sandbox, or parts of it',
  description:
    'Ranges and preconditions work as RFC 9110 says. Only regular files are read: of a directory use the list.',
  tag,
  params: SandboxPath,
  query: FileQuery,
  replies: {},
  files: [200, 206, 304],
  errors: [
    ...common,
    'is_a_directory',
    'not_a_file',
    'file_too_large',
    'precondition_failed',
    'range_not_satisfiable',
  ],
  handle: (input) =>
    openSandboxFile(input, { path: pathOfQuery(input.search), follow: input.query.follow ?? true }),
});

const writeSandboxFileRoute = route({
  method: 'put',
  path: files,
  operationId: 'writeSandboxFile',
  scope: 'sandbox',
  event: 'sandbox.file_written',
  summary: 'Write a file of a running sandbox, in place of one that is there',
  description:
    'The new content appears in one step once all of it has arrived; until then, and when the upload is cut, the old file stays. The answer is 201 when the file is new.',
  tag,
  params: SandboxPath,
  query: WriteFileQuery,
  upload: true,
  writesNothing: true,
  replies: { 200: success(SandboxFile), 201: success(SandboxFile) },
  errors: [...writing, 'not_a_file', 'file_too_large', 'precondition_failed'],
  handle: (input) => writeSandboxFile(input, pathOfQuery(input.search), input.query),
});

const removeSandboxFileRoute = route({
  method: 'delete',
  path: files,
  operationId: 'removeSandboxFile',
  scope: 'sandbox',
  event: 'sandbox.file_removed',
  summary: 'Remove a file, a link, or a directory of a running sandbox',
  description:
    'A link goes itself, not what it leads to. File systems that are mounted below a directory are left alone, and the directory with them: `file_busy`.',
  tag,
  params: SandboxPath,
  query: RemoveFileQuery,
  replies: {},
  empty: [204],
  errors: [...common, 'directory_not_empty'],
  async handle(input) {
    const path = pathOfQuery(input.search);
    await removeSandboxFile(input, { path, recursive: input.query.recursive === true });
    return { status: 204 };
  },
});

const listSandboxFilesRoute = route({
  method: 'get',
  path: `${files}/list`,
  operationId: 'listSandboxFiles',
  scope: 'read',
  summary: 'List a directory of a running sandbox',
  description:
    'In the order of the bytes of their names, a directory before what is in it. What is there throughout is listed once, whatever changes between pages. Links are listed as links.',
  tag,
  params: SandboxPath,
  query: ListFilesQuery,
  replies: { 200: successPage(SandboxFileList) },
  errors: common,
  handle: (input) => listSandboxFiles(input, pathOfQuery(input.search), input.query),
});

const statSandboxFileRoute = route({
  method: 'get',
  path: `${files}/stat`,
  operationId: 'statSandboxFile',
  scope: 'read',
  summary: 'Show what is at a path of a running sandbox',
  description: 'Of any type: with `follow=false` a link itself, with where it leads.',
  tag,
  params: SandboxPath,
  query: FileQuery,
  replies: { 200: success(SandboxFile) },
  errors: common,
  async handle(input) {
    const path = pathOfQuery(input.search);
    const follow = input.query.follow ?? true;
    return { status: 200, data: await statSandboxFile(input, { path, follow }) };
  },
});

const moveSandboxFileRoute = route({
  method: 'post',
  path: `${files}/move`,
  operationId: 'moveSandboxFile',
  scope: 'sandbox',
  event: 'sandbox.file_moved',
  summary: 'Move or rename a file or directory of a running sandbox',
  description: 'In one step, within one file system. A link moves itself.',
  tag,
  params: SandboxPath,
  body: MoveFile,
  writesNothing: true,
  replies: { 200: success(SandboxFile) },
  errors: [...writing, 'directory_not_empty', 'other_file_system'],
  async handle(input) {
    const { from, from_encoded, to, to_encoded, overwrite = false } = input.body;
    const file = await moveSandboxFile(input, {
      from: pathOfBody('from', from, from_encoded),
      to: pathOfBody('to', to, to_encoded),
      overwrite,
    });
    return { status: 200, data: file };
  },
});

const createSandboxDirectory = route({
  method: 'post',
  path: `${files}/directories`,
  operationId: 'createSandboxDirectory',
  scope: 'sandbox',
  event: 'sandbox.directory_created',
  summary: 'Make a directory in a running sandbox',
  description:
    'The answer is 201 when it is new. With `parents` a directory that is there already is no error: 200, and it stays as it is.',
  tag,
  params: SandboxPath,
  body: CreateDirectory,
  writesNothing: true,
  replies: { 200: success(SandboxFile), 201: success(SandboxFile) },
  errors: writing,
  async handle(input) {
    const { path, path_encoded, mode, uid, gid, parents = false } = input.body;
    const bytes = pathOfBody('path', path, path_encoded);
    const given = { mode, uid, gid, parents };
    const { file, isNew } = await makeSandboxDirectory(input, bytes, given);
    return { status: isNew ? 201 : 200, data: file };
  },
});

const watchSandboxFilesRoute = route({
  method: 'get',
  path: `${files}/watch`,
  operationId: 'watchSandboxFiles',
  scope: 'read',
  summary: 'Be told of changes in a directory of a running sandbox, as they happen',
  description:
    'Server-sent events: `ready`, then `created`, `modified`, `removed` and `attributes` with the path; `overflow` when some may be missing, so that the caller lists the directory anew; `end` with the reason, when the sandbox pauses or stops, too.',
  tag,
  params: SandboxPath,
  query: WatchFilesQuery,
  replies: {},
  events: [200],
  errors: [...common, 'other_file_system'],
  handle: (input) =>
    watchSandboxFiles(input, {
      path: pathOfQuery(input.search),
      follow: input.query.follow ?? true,
      recursive: input.query.recursive ?? false,
    }),
});

export const sandboxFileRoutes = [
  readSandboxFile,
  writeSandboxFileRoute,
  removeSandboxFileRoute,
  listSandboxFilesRoute,
  statSandboxFileRoute,
  moveSandboxFileRoute,
  createSandboxDirectory,
  watchSandboxFilesRoute,
];
