/* Opening files beneath a directory whose contents its owner controls. */
#pragma once

/* The longest extended attribute that is read: one block, as much as ext4 keeps of a file. */
enum { ATTRIBUTE_BYTES_MAX = 4096 };

/*
 * Opens with O_PATH what the path names beneath the directory: no link and no `..` leads out of it,
 * and no mount is crossed (openat2(2)). An empty path opens the directory itself. -1 and errno.
 */
int open_beneath(const char *directory, const char *path, int flags);
