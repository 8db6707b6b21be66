/* The agreement between serve-disks.c and wal-locks.c, which the NFS server loads. */
#pragma once

/* In the server's environment: a decimal number of nanoseconds since 1970. */
#define RECOVERS_SINCE "RECOVERS_SINCE"

enum {
  /* A pipe on which nothing comes, and that ends when the guest has recovered its locks. */
  FD_RECOVERY = 5,
  /* From here on: guards that the host kept while the guest was paused. */
  FD_KEPT_GUARDS = 6,
  /* Limit of the server's descriptors; guards are among the last of them. */
  SERVER_FILES_MAX = 16384,
  GUARDS_MAX = 1024,
  FIRST_GUARD = SERVER_FILES_MAX - GUARDS_MAX,
};
