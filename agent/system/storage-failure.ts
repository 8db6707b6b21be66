import { errnoOf } from '../../shared/errors.ts';

/**
 * Storage that is damaged, or that belongs to a cluster which has shut the host out: ESHUTDOWN says
 * so of CephFS, ESTALE of NFS. The kernel makes a file system read-only whose device fails.
 */
const STORAGE_FAILED = /^(?:EIO|EROFS|EUCLEAN|ESTALE|ESHUTDOWN|ENOTCONN)$/u;

/** Whether a system call says that the storage failed, rather than that the request was wrong. */
export const isStorageFailure = (error: unknown): boolean =>
  STORAGE_FAILED.test(errnoOf(error) ?? '');
