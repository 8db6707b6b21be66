import Type from 'typebox';
import { accountIdPattern, sandboxIdPattern } from '../ids.ts';
import { parseJson } from '../json.ts';
import { SCHEMA_LIMITS } from '../schemas/limits.ts';
import { SandboxFile } from '../schemas/sandbox-file.ts';
import { compile } from '../validate.ts';
import type { Claims } from './single-use-token.ts';

/*
 * Requests of control nodes for the files of a sandbox, over plain HTTP on the internal port of its
 * host. The token (part-requests.ts) names the sandbox and says what is to be done. Failures are
 * told in a header, as by the data endpoint; what succeeds is answered by the content of a file, by
 * events, or by JSON.
 */

export const FILES_PATH = '/sandbox/files';

const fileOperations = [
  ...(['read', 'write', 'stat', 'list'] as const),
  ...(['makeDirectory', 'move', 'remove', 'watch'] as const),
];

/** The bytes of a path, in base64url. */
const Path = Type.String({ pattern: '^[\\w-]*$', maxLength: 2 * SCHEMA_LIMITS.filePathBytesMax });
const number = Type.Optional(Type.Integer({ minimum: 0, maximum: 4_294_967_294 }));
const flag = Type.Optional(Type.Boolean());

const FileOperation = Type.Object({
  type: Type.Enum(fileOperations),
  path: Path,
  /** Where it moves to. */
  to: Type.Optional(Path),
  /** The entry that a listing goes on after, from the directory that is listed. */
  after: Type.Optional(Path),
  follow: flag,
  recursive: flag,
  parents: flag,
  overwrite: flag,
  sync: flag,
  mode: number,
  uid: number,
  gid: number,
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: SCHEMA_LIMITS.fileListMax })),
});
export type FileOperation = Type.Static<typeof FileOperation>;

const FilesClaims = Type.Object({
  accountId: Type.String({ pattern: accountIdPattern }),
  sandboxId: Type.String({ pattern: sandboxIdPattern }),
  operation: Type.String(),
});

const checkClaims = compile(FilesClaims);
const checkOperation = compile(FileOperation);

export interface FilesRequest {
  readonly accountId: string;
  readonly sandboxId: string;
  readonly operation: FileOperation;
}

/** The claims of a token for files. */
export const filesClaims = ({
  accountId,
  sandboxId,
  operation,
}: FilesRequest): Record<string, string> => ({
  accountId,
  sandboxId,
  operation: JSON.stringify(operation),
});

/** @throws AppError `bad_request` unless the claims are those of a control node */
export function readFilesRequest(claims: Claims): FilesRequest {
  const { accountId, sandboxId, operation } = checkClaims(claims, 'files request');
  return { accountId, sandboxId, operation: checkOperation(parseJson(operation), 'operation') };
}

/** The answer of operations that do not answer with bytes. */
const FilesAnswer = Type.Object({
  file: Type.Optional(SandboxFile),
  /** True when the file was not there before. */
  isNew: flag,
  entries: Type.Optional(Type.Array(SandboxFile, { maxItems: SCHEMA_LIMITS.fileListMax })),
  /** `after` of the next page. */
  next: Type.Optional(Path),
});
export type FilesAnswer = Type.Static<typeof FilesAnswer>;

const checkAnswer = compile(FilesAnswer);

/** @throws AppError unless an agent has said it */
export const readFilesAnswer = (text: string): FilesAnswer =>
  checkAnswer(parseJson(text), 'answer of the host');
