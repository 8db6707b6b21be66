import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import type { Readable } from 'node:stream';
import type { Caller } from '../../shared/directory/api-keys.ts';
import { AppError } from '../../shared/errors.ts';
import { statusOfState, verdictOn } from '../../shared/sandbox-lifecycle.ts';
import type {
  ListFilesQuery,
  SandboxFile,
  WriteFileQuery,
} from '../../shared/schemas/sandbox-file.ts';
import type { Deps } from './deps.ts';
import { findSandbox } from './find-sandbox.ts';

/** What these services need of a request. */
export interface FilesRequest {
  readonly deps: Deps;
  readonly caller: Caller;
  readonly params: { readonly sid: string };
  readonly request: IncomingMessage;
  readonly method: string;
  readonly headers: IncomingHttpHeaders;
  readonly requestId: string;
  readonly address: string;
  readonly callerGone: () => AbortSignal;
  readonly note: (fields: Record<string, unknown>) => void;
}

interface Stream {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly stream: Readable;
}

/** An operation that is answered with what is at the path then. */
export type FileChange =
  | { readonly type: 'stat'; readonly path: Buffer; readonly follow: boolean }
  | { readonly type: 'remove'; readonly path: Buffer; readonly isRecursive: boolean }
  | {
      readonly type: 'move';
      readonly path: Buffer;
      readonly to: Buffer;
      readonly overwrite: boolean;
    }
  | {
      readonly type: 'makeDirectory';
      readonly path: Buffer;
      readonly mode: string | undefined;
      readonly uid: number | undefined;
      readonly gid: number | undefined;
      readonly parents: boolean;
    };

/** @throws AppError `not_found`, `sandbox_not_running` */
async function refuse({ deps, caller, params, note }: FilesRequest): Promise<never> {
  note({ sandboxId: params.sid });
  const record = await findSandbox(deps, caller.accountId, params.sid);
  const verdict = verdictOn(record.state, 'connect');
  if (verdict.kind === 'refuse') {
    const status = statusOfState(record.state);
    throw new AppError(verdict.code, `the sandbox is ${status}: its files are out of reach now`);
  }
  throw new AppError('not_enabled', 'files of sandboxes are not served by this version yet');
}

/** The file, or the parts of it that are asked for. */
export const openSandboxFile = (
  request: FilesRequest,
  _wanted: { readonly path: Buffer; readonly follow: boolean },
): Promise<Stream> => refuse(request);

/** Writes the request's body to a file. */
export const writeSandboxFile = (
  request: FilesRequest,
  _path: Buffer,
  _query: WriteFileQuery,
): Promise<{ status: number; data: SandboxFile }> => refuse(request);

/** Carries an operation out. */
export const changeSandboxFiles = (
  request: FilesRequest,
  _change: FileChange,
): Promise<{ file: SandboxFile; isNew: boolean }> => refuse(request);

/** One page of a directory. */
export const listSandboxFiles = (
  request: FilesRequest,
  _path: Buffer,
  _query: ListFilesQuery,
): Promise<{ status: number; data: { entries: SandboxFile[] }; nextCursor?: string }> =>
  refuse(request);

/** Events of a directory. */
export const watchSandboxFiles = (
  request: FilesRequest,
  _wanted: { readonly path: Buffer; readonly follow: boolean; readonly isRecursive: boolean },
): Promise<Stream> => refuse(request);
