/**
 * Client for Berth: shared disks, serverless execution and persistent sandboxes.
 *
 * @packageDocumentation
 */
export { Account, type ListActivityOptions } from './account.ts';
export { ApiKeys } from './api-keys.ts';
export { Berth, type BerthOptions } from './berth.ts';
export { Disk, Disks, type GrepOptions, type NewDiskUser } from './disk.ts';
export {
  ApiError,
  type ApiFailure,
  BadRequestError,
  BerthError,
  CallTimeoutError,
  ConflictError,
  ConnectionError,
  DeadlineError,
  ForbiddenError,
  NotFoundError,
  OutcomeUnknownError,
  OutputLostError,
  PreconditionError,
  ProcessLostError,
  RateLimitError,
  ServerError,
  SessionError,
  TooLargeError,
  UnauthorizedError,
  UnavailableError,
  WatchEndedError,
} from './errors.ts';
export type { FileContent, StreamedContent, WholeContent } from './files/content.ts';
export {
  type DiskFile,
  DiskFiles,
  type ListDiskFilesOptions,
  type ReadDiskFileOptions,
  type WriteDiskFileOptions,
} from './files/disk-files.ts';
export { FileDownload, type FileRange } from './files/download.ts';
export { decodePath, type FilePath } from './files/paths.ts';
export {
  type MakeDirectoryOptions,
  type ReadFileOptions,
  SandboxFiles,
  type WatchFilesOptions,
  type WriteFileOptions,
} from './files/sandbox-files.ts';
export { type FileChange, FileWatch } from './files/watch.ts';
export type { CallOptions, CreatingCallOptions } from './http.ts';
export { Hosts } from './hosts.ts';
export { Image, Images } from './image.ts';
export { type Page, Pages } from './pages.ts';
export { type Input, Process, type ProcessResult, type StartOptions } from './process.ts';
export {
  type CreateSandboxOptions,
  type RunOptions,
  Sandbox,
  Sandboxes,
  type SnapshotOptions,
} from './sandbox.ts';
export { SandboxExecs } from './sandbox-execs.ts';
export { SandboxNetwork } from './sandbox-network.ts';
export type { OutputChunk, ProcessExit } from './session/frames.ts';
export type { SessionOptions } from './session/session.ts';
export { Snapshot, Snapshots } from './snapshot.ts';
export type {
  AnswerBody,
  Fetch,
  FetchAnswer,
  FetchInit,
  Socket,
  SocketClass,
} from './transport.ts';
export type * from './types.ts';
export type { WaitOptions } from './waiting.ts';
export { Webhooks } from './webhooks.ts';
