/*
 * Options of an operation on files, and the form of its answer.
 *
 * The operation: u8 kind, u8 flags, u32 mode, u32 user, u32 group, u32 entries of a page, u16 and
 * a path, u16 and another. The answer, on stdout, begins with a result (u16): 0, an error number or
 * one of RESULT_. A stat is type (u8, st_mode >> 12), mode (u16), user, group (u32), size, inode
 * (u64), then seconds and nanoseconds (u64, u32) of mtime and of ctime. After result 0:
 *
 *   read       stat; then the bytes of each pair of offset and length (u64) that comes on stdin.
 *              Ends early when the file has become shorter
 *   write      u8 whether something is there, its stat if so; content comes on stdin in pieces
 *              after their length (u32), the last of length 0; then result and stat. Without that
 *              last piece nothing is written
 *   stat       stat, u16 and where a link leads
 *   list       per entry: u16 and path, stat, u16 and where a link leads; then u16 0, u8 whether
 *              there may be more, result
 *   directory  u8 whether it is new, stat
 *   move       stat
 *   remove     nothing
 *   watch      per event: u8 kind (file-watch.c), u8 whether of a directory, u16 and path; after
 *              the end a result
 */
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
