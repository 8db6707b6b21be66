/* Opening files beneath a directory whose contents its owner controls. */
#pragma once
#include <sys/stat.h>

/* The longest extended attribute that is read: one block, as much as ext4 keeps of a file. */
enum { ATTRIBUTE_BYTES_MAX = 4096 };

/*
 * Opens with O_PATH what the path names beneath the directory: no link and no `..` leads out of it,
 * and no mount is crossed (openat2(2)). An empty path opens the directory itself. -1 and errno.
 */
int open_beneath(const char *directory, const char *path, int flags);

/*
 * Opens a regular file, or a directory with O_DIRECTORY, found as by `open_beneath`. It is opened
 * by the descriptor that found it, so that it cannot be another file by then. EISDIR: a directory;
 * ENXIO for everything else, which is not opened at all: a FIFO could block, and a device could do
 * anything. With O_PATH the descriptor that found it is the result: it gives no access to the
 * contents, so any kind of file will do. EIO when there is no root.
 * `found` is the status from before the file was opened; not set with O_PATH.
 */
int open_file_beneath(const char *directory, const char *path, int flags, struct stat *found);
