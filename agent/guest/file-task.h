/* Options of an operation on files. */
#pragma once
#include <limits.h>
#include <stdint.h>
#include <sys/types.h>

/* Begins the name of an upload where the file system makes no files without names. */
#define TEMPORARY_PREFIX ".berth-"

enum {
  OPERATION_READ = 1,
  OPERATION_WRITE = 2,
  OPERATION_STAT = 3,
  OPERATION_LIST = 4,
  OPERATION_DIRECTORY = 5,
  OPERATION_MOVE = 6,
  OPERATION_REMOVE = 7,
  OPERATION_WATCH = 8,

  ASKED_FOLLOW = 1,    /* A link at the end of the path stands for what it leads to. */
  ASKED_PARENTS = 2,   /* Missing directories above it are made. */
  ASKED_EXCLUSIVE = 4, /* Nothing may be there. */
  ASKED_UNCHANGED = 8, /* The file found at the beginning must still be there at the end. */
  ASKED_SYNC = 16,
  ASKED_RECURSIVE = 32,
  ASKED_OVERWRITE = 64,

  /* Results besides error numbers. */
  RESULT_NOT_A_FILE = 4096,
  RESULT_CHANGED = 4097,
  RESULT_TOO_DEEP = 4098,
  RESULT_TOO_MANY = 4099,
  RESULT_UNSEEN = 4100, /* Others change it, and our kernel is not told. */

  FILE_PATH_MAX = PATH_MAX - 1,
  FILE_DEPTH_MAX = 256,
};

/* In `mode`, `uid` and `gid`: nothing was asked for. */
#define UNASKED UINT32_MAX

struct file_task {
  uint8_t flags;
  uint32_t mode, uid, gid;
  uint32_t limit;
  char path[FILE_PATH_MAX + 1];
  char other[FILE_PATH_MAX + 1]; /* Where it moves; where a listing goes on. */
  uid_t default_uid;
  gid_t default_gid;
};
