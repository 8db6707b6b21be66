/* Detached mounts of directories of disks, made before a process enters another namespace. */
#pragma once

/* A disk as a sandbox sees it: four arguments of a command line. */
struct disk_mount {
  const char *contents, *subdirectory, *target;
  int tree; /* The detached mount. */
};

enum { DISK_MOUNT_ARGUMENTS = 4, DISK_MOUNTS_MAX = 32 };

/*
 * Reads CONTENTS SUBDIRECTORY TARGET rw|ro of each mount and makes its tree: the subdirectory is
 * resolved beneath the contents, and the mount allows neither devices nor setuid programs. With a
 * user namespace (not -1) owners look the same in it as on the disk. Returns how many there are;
 * does not return when one fails.
 */
int make_disk_trees(int count, char **arguments, int user_namespace, struct disk_mount *mounts);
