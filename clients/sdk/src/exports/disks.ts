/**
 * Disks, commands on them, and their files.
 *
 * @module disks
 */
export { Disk, Disks, type GrepOptions } from '../disk.ts';
export {
  type DiskFile,
  DiskFiles,
  type ListDiskFilesOptions,
  type ReadDiskFileOptions,
  type WriteDiskFileOptions,
} from '../files/disk-files.ts';
