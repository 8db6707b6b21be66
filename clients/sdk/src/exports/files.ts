/**
 * Reading, writing, arranging and watching files of a running sandbox.
 *
 * @module files
 */
export type { FileContent, StreamedContent, WholeContent } from '../files/content.ts';
export { FileDownload, type FileRange } from '../files/download.ts';
export { decodePath, type FilePath } from '../files/paths.ts';
export {
  type MakeDirectoryOptions,
  type ReadFileOptions,
  SandboxFiles,
  type WatchFilesOptions,
  type WriteFileOptions,
} from '../files/sandbox-files.ts';
export { type FileChange, FileWatch } from '../files/watch.ts';
