import { text } from 'node:stream/consumers';
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import { Readable } from 'node:stream';
import type { Caller } from '../../../shared/directory/api-keys.ts';
import { AppError } from '../../../shared/errors.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import { FILE_RESPONSE_HEADERS } from '../../../shared/links/data-protocol.ts';
import {
  type FileOperation,
  type FilesAnswer,
  readFilesAnswer,
} from '../../../shared/links/files-protocol.ts';
import { statusOfState, verdictOn } from '../../../shared/sandbox-lifecycle.ts';
import type {
  ListFilesQuery,
  SandboxFile,
  WriteFileQuery,
} from '../../../shared/schemas/sandbox-file.ts';
import type { Deps } from '../../region/deps.ts';
import { findSandbox } from '../../region/find-sandbox.ts';
import { RefusedRequest } from '../../region/refused-request.ts';
import { findOwner } from './sandbox-actions.ts';

/** The request, as these services see it. */
export interface FilesContext {
  readonly deps: Deps;
  readonly caller: Caller;
  readonly params: { readonly sid: string };
  readonly request: IncomingMessage;
  readonly method: string;
  readonly headers: IncomingHttpHeaders;
  readonly requestId: string;
  readonly callerGone: () => AbortSignal;
  readonly note: (fields: Record<string, unknown>) => void;
}

interface Stream {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly stream: Readable;
}

/** Content of a sandbox is not trusted: browsers must not run it in the origin of the API. */
const SAFETY_HEADERS = {
  'content-security-policy': "default-src 'none'; sandbox",
  'content-disposition': 'attachment',
  'x-content-type-options': 'nosniff',
  'cache-control': 'private, no-cache, no-transform', // Compressed, it would lose its length.
} as const;

const encode = (path: Buffer): string => path.toString('base64url');

/** The octal text of a query or body as a number. */
const modeOf = (mode: string | undefined): number | undefined =>
  mode === undefined ? undefined : Number.parseInt(mode, 8);

/** The host needs to know of content of files. All other answers are read here, also for HEAD. */
function methodOf({ type }: FileOperation, method: string): 'PUT' | 'HEAD' | 'GET' {
  if (type === 'write') return 'PUT';
  return type === 'read' && method === 'HEAD' ? 'HEAD' : 'GET';
}

/**
 * Sends an operation to the sandbox's host.
 * @throws AppError `not_found`, `sandbox_not_running`, and what the host says
 */
async function open(
  context: FilesContext,
  operation: FileOperation,
  upload?: IncomingMessage,
): Promise<IncomingMessage> {
  const { deps, caller, params, method, headers, requestId, callerGone, note } = context;
  note({ sandboxId: params.sid });
  const { accountId } = caller;
  const record = await findSandbox(deps, accountId, params.sid);
  const verdict = verdictOn(record.state, 'connect');
  if (verdict.kind === 'refuse') {
    const status = statusOfState(record.state);
    throw new AppError(verdict.code, `the sandbox is ${status}: its files are out of reach now`);
  }
  const host = await findOwner(deps, record);
  return deps.files.open({
    ...{ accountId, sandboxId: record.id, operation, host, headers, upload, requestId },
    method: methodOf(operation, method),
    signal: callerGone(),
  });
}

/** Sends an operation without content to the host and returns its answer. */
async function ask(
  context: FilesContext,
  operation: FileOperation,
  upload?: IncomingMessage,
): Promise<FilesAnswer> {
  const answer = await open(context, operation, upload);
  return readFilesAnswer(await text(answer));
}

function fileOf({ file }: FilesAnswer): SandboxFile {
  if (file === undefined) throw new Error('the host answered without a file');
  return file;
}

/**
 * The file, or the parts of it that are asked for.
 * @throws AppError `precondition_failed`, `range_not_satisfiable`, and what the host says
 */
export async function openSandboxFile(
  context: FilesContext,
  { path, follow }: { readonly path: Buffer; readonly follow: boolean },
): Promise<Stream> {
  const answer = await open(context, { type: 'read', path: encode(path), follow });
  const said = FILE_RESPONSE_HEADERS.flatMap((name): [string, string][] => {
    const value = answer.headers[name];
    return typeof value === 'string' ? [[name, value]] : [];
  });
  const headers = { ...Object.fromEntries(said), ...SAFETY_HEADERS };
  const { statusCode: status = 0 } = answer;
  if (status === 200 || status === 206 || status === 304) {
    return { status, headers, stream: answer };
  }
  answer.resume();
  if (status === 412) {
    throw new RefusedRequest('precondition_failed', 'the file has changed', { headers });
  }
  if (status === 416) {
    throw new RefusedRequest('range_not_satisfiable', 'the file has no such part', { headers });
  }
  throw new Error(`the host answered ${status}`);
}

/**
 * Refuses headers with which a request means something else, and which are not obeyed.
 * @throws AppError `bad_request`
 */
function refuseHeaders(headers: IncomingHttpHeaders, names: readonly string[]): void {
  const given = names.find((name) => headers[name] !== undefined);
  if (given === undefined) return;
  throw new AppError('bad_request', `the header ${given} is not obeyed here: leave it out`);
}

/**
 * Writes the request's body to a file.
 * @throws AppError `precondition_failed`, and what the host says
 */
export async function writeSandboxFile(
  context: FilesContext,
  path: Buffer,
  { mode, uid, gid, parents, follow = true, sync }: WriteFileQuery,
): Promise<{ status: number; data: SandboxFile }> {
  refuseHeaders(context.headers, ['content-range', 'content-encoding']);
  const operation = {
    ...{ type: 'write' as const, path: encode(path), follow },
    ...definedOnly({ parents, sync, mode: modeOf(mode), uid, gid }),
  };
  const answer = await ask(context, operation, context.request);
  return { status: answer.isNew === true ? 201 : 200, data: fileOf(answer) };
}

/** Without the fields that are undefined, which schemas do not take for absent ones. */
function definedOnly<T extends object>(fields: T): { [K in keyof T]?: NonNullable<T[K]> } {
  const defined = Object.entries(fields).filter(([, value]) => value !== undefined);
  return Object.fromEntries(defined) as { [K in keyof T]?: NonNullable<T[K]> };
}

/** The type, size and times of a path. @throws AppError what the host says */
export async function statSandboxFile(
  context: FilesContext,
  { path, follow }: { readonly path: Buffer; readonly follow: boolean },
): Promise<SandboxFile> {
  return fileOf(await ask(context, { type: 'stat', path: encode(path), follow }));
}

/** Removes what is at the path. @throws AppError what the host says */
export async function removeSandboxFile(
  context: FilesContext,
  { path, recursive }: { readonly path: Buffer; readonly recursive: boolean },
): Promise<void> {
  refuseHeaders(context.headers, ['if-match', 'if-none-match', 'if-unmodified-since']);
  await ask(context, { type: 'remove', path: encode(path), recursive });
}

/** @returns what is there now. @throws AppError what the host says */
export async function moveSandboxFile(
  context: FilesContext,
  move: { readonly from: Buffer; readonly to: Buffer; readonly overwrite: boolean },
): Promise<SandboxFile> {
  const { from, to, overwrite } = move;
  const operation = { type: 'move' as const, path: encode(from), to: encode(to), overwrite };
  return fileOf(await ask(context, operation));
}

/** @returns the directory, and whether it was made. @throws AppError what the host says */
export async function makeSandboxDirectory(
  context: FilesContext,
  path: Buffer,
  given: {
    readonly mode: string | undefined;
    readonly uid: number | undefined;
    readonly gid: number | undefined;
    readonly parents: boolean;
  },
): Promise<{ file: SandboxFile; isNew: boolean }> {
  const { mode, uid, gid, parents } = given;
  const answer = await ask(context, {
    ...{ type: 'makeDirectory', path: encode(path), parents },
    ...definedOnly({ mode: modeOf(mode), uid, gid }),
  });
  return { file: fileOf(answer), isNew: answer.isNew === true };
}

/** Longest cursor, in base64url: a path as the host takes it. */
const CURSOR_MAX = 8190;

/** Whether a page can have ended with it: a path below the directory, in base64url. */
function isFileCursor(cursor: string): boolean {
  const path = Buffer.from(cursor, 'base64url');
  if (cursor === '' || cursor.length > CURSOR_MAX || path.toString('base64url') !== cursor) {
    return false;
  }
  const names = path.toString('latin1').split('/');
  return names.every(
    (name) => name !== '' && name !== '.' && name !== '..' && !name.includes('\0'),
  );
}

/** A page of a directory. @throws AppError what the host says */
export async function listSandboxFiles(
  context: FilesContext,
  path: Buffer,
  {
    follow = true,
    recursive = false,
    limit = SCHEMA_LIMITS.fileListDefault,
    cursor,
  }: ListFilesQuery,
): Promise<{ status: number; data: { entries: SandboxFile[] }; nextCursor?: string }> {
  if (cursor !== undefined && !isFileCursor(cursor)) {
    throw new AppError('bad_request', 'cursor is not one that a page was answered with');
  }
  const { entries = [], next } = await ask(context, {
    ...{ type: 'list', path: encode(path), follow, recursive },
    limit: Math.min(limit, SCHEMA_LIMITS.fileListMax),
    ...(cursor === undefined ? {} : { after: cursor }),
  });
  const nextCursor = next === undefined ? {} : { nextCursor: next };
  return { status: 200, data: { entries }, ...nextCursor };
}

/** Events of a directory. @throws AppError what the host says */
export async function watchSandboxFiles(
  context: FilesContext,
  wanted: { readonly path: Buffer; readonly follow: boolean; readonly recursive: boolean },
): Promise<Stream> {
  const { path, ...how } = wanted;
  const events = await open(context, { type: 'watch', path: encode(path), ...how });
  const headers = {
    'content-type': 'text/event-stream',
    'cache-control': 'no-store',
    'x-accel-buffering': 'no',
  };
  if (context.method !== 'HEAD') return { status: 200, headers, stream: events };
  events.destroy();
  return { status: 200, headers, stream: Readable.from([]) };
}
