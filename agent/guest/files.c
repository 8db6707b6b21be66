#define _GNU_SOURCE
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "file-answer.h"
#include "file-list.h"
#include "file-place.h"
#include "file-remove.h"
#include "file-task.h"
#include "file-watch.h"
#include "file-write.h"
#include "user.h"
#include "wire.h"

enum { READ_BYTES = 128 * KIB };

/* Opens what is there, whatever it is, without any effect on it. Finishes when nothing is. */
static int open_found(const struct file_task *task, struct stat *found) {
  int link = (task->flags & ASKED_FOLLOW) != 0 ? 0 : O_NOFOLLOW;
  int fd = open_safely(AT_FDCWD, task->path, O_PATH | link, 0);
  if (fd < 0 || fstat(fd, found) != 0) finish_with(errno);
  return fd;
}

static _Noreturn void stat_file(const struct file_task *task) {
  struct stat found;
  int fd = open_found(task, &found);
  answer_number(0, 2);
  answer_stat(&found);
  answer_target(fd, "", &found);
  finish();
}

static bool read_exactly(void *into, size_t length) {
  for (uint8_t *at = into; length > 0;) {
    ssize_t got = read(STDIN_FILENO, at, length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    length -= (size_t)got;
  }
  return true;
}

static void send_range(int fd, uint64_t offset, uint64_t length) {
  static uint8_t piece[READ_BYTES];
  while (length > 0) {
    size_t wanted = length < sizeof piece ? (size_t)length : sizeof piece;
    ssize_t got = pread(fd, piece, wanted, (off_t)offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) _exit(1); /* The file was truncated meanwhile: what came must not look whole. */
    write_answer(piece, (size_t)got);
    offset += (uint64_t)got;
    length -= (uint64_t)got;
  }
}

/*
 * Only regular files are opened: a device or FIFO could block, or act. The one that is opened must
 * be the one that was looked at.
 */
static int open_regular(const struct file_task *task, struct stat *found) {
  struct stat opened;
  open_found(task, found);
  if (S_ISDIR(found->st_mode)) finish_with(EISDIR);
  if (S_ISLNK(found->st_mode)) finish_with(ELOOP);
  if (!S_ISREG(found->st_mode)) finish_with(RESULT_NOT_A_FILE);
  int link = (task->flags & ASKED_FOLLOW) != 0 ? 0 : O_NOFOLLOW;
  int fd = open_safely(AT_FDCWD, task->path, O_RDONLY | O_NONBLOCK | O_NOCTTY | link, 0);
  if (fd < 0 || fstat(fd, &opened) != 0) finish_with(errno);
  if (opened.st_dev != found->st_dev || opened.st_ino != found->st_ino) finish_with(RESULT_CHANGED);
  *found = opened;
  return fd;
}

/* Says what the file is, then sends the ranges that are asked for until nothing more is. */
static _Noreturn void read_file(const struct file_task *task) {
  struct stat found;
  uint64_t range[2];
  int fd = open_regular(task, &found);
  answer_number(0, 2);
  answer_stat(&found);
  flush_answer();
  while (read_exactly(range, sizeof range)) send_range(fd, range[0], range[1]);
  finish();
}

static _Noreturn void create_directory(const struct file_task *task) {
  struct place place;
  bool is_root = strcmp(task->path, "/") == 0;
  int missing = is_root ? 0 : find_place(task, task->path, false, &place);
  if (missing != 0) finish_with(missing);
  if (is_root && stat("/", &place.found) != 0) finish_with(errno);
  mode_t mode = task->mode == UNASKED ? 0755 : task->mode;
  int error = is_root ? EEXIST : make_directory(task, place.directory, place.name, mode);
  if (error != 0 && (error != EEXIST || (task->flags & ASKED_PARENTS) == 0)) finish_with(error);
  if (!is_root && look_at_place(&place) != 0) finish_with(errno);
  if (!S_ISDIR(place.found.st_mode)) finish_with(EEXIST);
  answer_number(0, 2);
  answer_number(error == 0, 1);
  answer_stat(&place.found);
  finish();
}

static _Noreturn void move_file(const struct file_task *task) {
  struct place from, to;
  int error = find_place(task, task->path, false, &from);
  if (error == 0 && !from.exists) error = ENOENT;
  if (error == 0) error = find_place(task, task->other, false, &to);
  if (error != 0) finish_with(error == EISDIR ? EBUSY : error);
  unsigned int flags = (task->flags & ASKED_OVERWRITE) != 0 ? 0 : RENAME_NOREPLACE;
  if (renameat2(from.directory, from.name, to.directory, to.name, flags) != 0) finish_with(errno);
  if (look_at_place(&to) != 0) finish_with(errno);
  answer_number(0, 2);
  answer_stat(&to.found);
  finish();
}

/* Trailing slashes may end the name of a directory; of a file they are a mistake. */
static void strip_slashes(char *path) {
  size_t length = strlen(path);
  while (length > 1 && path[length - 1] == '/') path[--length] = '\0';
}

/* False unless the whole operation is one that a host sends. */
static bool read_task(const uint8_t *operation, size_t length, uint8_t *kind,
                      struct file_task *task) {
  struct reader reader = {.at = operation, .left = length, .valid = true};
  *kind = (uint8_t)take_number(&reader, 1);
  task->flags = (uint8_t)take_number(&reader, 1);
  task->mode = (uint32_t)take_number(&reader, 4);
  task->uid = (uint32_t)take_number(&reader, 4);
  task->gid = (uint32_t)take_number(&reader, 4);
  task->limit = (uint32_t)take_number(&reader, 4);
  take_text(&reader, 2, task->path, FILE_PATH_MAX);
  take_text(&reader, 2, task->other, FILE_PATH_MAX);
  if (*kind == OPERATION_DIRECTORY || *kind == OPERATION_MOVE || *kind == OPERATION_REMOVE) {
    strip_slashes(task->path);
    strip_slashes(task->other);
  }
  return took_all(&reader) && task->path[0] == '/';
}

_Noreturn void run_file_operation(const uint8_t *operation, size_t length,
                                  const char *default_user) {
  static struct file_task task;
  struct user user;
  const char *step;
  uint8_t kind;
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN); /* A file that is too large is an error, not the end. */
  umask(0);
  if (!read_task(operation, length, &kind, &task)) finish_with(EINVAL);
  /* A user that the image does not list: then root, whom the operation runs as. */
  bool is_listed = find_user(default_user, &user, &step) == 0;
  task.default_uid = is_listed ? user.uid : 0;
  task.default_gid = is_listed ? user.gid : 0;
  switch (kind) {
    case OPERATION_READ:
      read_file(&task);
    case OPERATION_WRITE:
      write_file(&task);
    case OPERATION_STAT:
      stat_file(&task);
    case OPERATION_LIST:
      list_files(&task);
    case OPERATION_DIRECTORY:
      create_directory(&task);
    case OPERATION_MOVE:
      move_file(&task);
    case OPERATION_REMOVE:
      remove_files(&task);
    case OPERATION_WATCH:
      watch_files(&task);
    default:
      finish_with(EOPNOTSUPP);
  }
}
