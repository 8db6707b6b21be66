#define _GNU_SOURCE
#include "file-write.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "file-answer.h"
#include "file-place.h"
#include "wire.h"

enum { PIECE_BYTES = 64 * KIB };

struct upload {
  struct place place;
  int fd;
  bool is_named; /* `temporary_name` is the new file. */
};

/* For the handler of SIGTERM, with which the guest agent ends an upload that was cut. */
static volatile sig_atomic_t has_temporary;
static int temporary_directory;
static char temporary_name[48];

static void remove_temporary(void) {
  if (has_temporary) unlinkat(temporary_directory, temporary_name, 0);
  has_temporary = 0;
}

static void terminated(int number) {
  (void)number;
  remove_temporary();
  _exit(1);
}

static _Noreturn void fail(int result) {
  remove_temporary();
  finish_with(result);
}

/* A name that nobody can guess: whoever could would put a file of their own there. */
static int choose_name(int directory) {
  uint8_t random[16];
  if (getrandom(random, sizeof random, 0) != sizeof random) return EIO;
  int at = snprintf(temporary_name, sizeof temporary_name, TEMPORARY_PREFIX);
  for (size_t index = 0; index < sizeof random; index++)
    at += snprintf(temporary_name + at, sizeof temporary_name - (size_t)at, "%02x", random[index]);
  temporary_directory = directory;
  return 0;
}

static int open_temporary(struct upload *upload) {
  int directory = upload->place.directory;
  upload->fd = openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (upload->fd >= 0) return 0;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL) return errno;
  int error = choose_name(directory);
  if (error != 0) return error;
  has_temporary = 1;
  upload->is_named = true;
  int flags = O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC;
  upload->fd = openat(directory, temporary_name, flags, 0600);
  return upload->fd >= 0 ? 0 : errno;
}

static void read_fully(uint8_t *into, size_t length) {
  while (length > 0) {
    ssize_t got = read(STDIN_FILENO, into, length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) terminated(0); /* The host is gone, and did not say that this was all. */
    into += got;
    length -= (size_t)got;
  }
}

static void write_fully(int fd, const uint8_t *from, size_t length) {
  while (length > 0) {
    ssize_t wrote = write(fd, from, length);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) fail(errno);
    from += wrote;
    length -= (size_t)wrote;
  }
}

/* Pieces after their lengths. The last one is empty: without it the upload was cut. */
static void receive(int fd) {
  static uint8_t piece[PIECE_BYTES];
  for (;;) {
    uint32_t left;
    read_fully((uint8_t *)&left, sizeof left);
    if (left == 0) return;
    while (left > 0) {
      size_t length = left < sizeof piece ? left : sizeof piece;
      read_fully(piece, length);
      write_fully(fd, piece, length);
      left -= (uint32_t)length;
    }
  }
}

/* Nobody but its owner sees it before it has its mode. */
static int dress(const struct file_task *task, const struct upload *upload) {
  const struct place *place = &upload->place;
  uid_t uid = place->exists ? place->found.st_uid : task->default_uid;
  gid_t gid = place->exists ? place->found.st_gid : task->default_gid;
  /* Set-user-id and set-group-id bits were given to the former contents. */
  mode_t mode = place->exists ? place->found.st_mode & 01777 : 0644;
  if (task->uid != UNASKED) uid = task->uid;
  if (task->gid != UNASKED) gid = task->gid;
  if (task->mode != UNASKED) mode = task->mode;
  if (fchown(upload->fd, uid, gid) != 0 || fchmod(upload->fd, mode) != 0) return errno;
  return (task->flags & ASKED_SYNC) != 0 && fsync(upload->fd) != 0 ? errno : 0;
}

static bool is_same(const struct stat *one, const struct stat *other) {
  return one->st_dev == other->st_dev && one->st_ino == other->st_ino &&
         one->st_size == other->st_size && one->st_mtim.tv_sec == other->st_mtim.tv_sec &&
         one->st_mtim.tv_nsec == other->st_mtim.tv_nsec &&
         one->st_ctim.tv_sec == other->st_ctim.tv_sec &&
         one->st_ctim.tv_nsec == other->st_ctim.tv_nsec;
}

static int check_unchanged(const struct file_task *task, const struct place *place) {
  struct stat now;
  bool exists = fstatat(place->directory, place->name, &now, AT_SYMLINK_NOFOLLOW) == 0;
  if (exists && S_ISDIR(now.st_mode)) return EISDIR;
  if ((task->flags & ASKED_UNCHANGED) == 0) return 0;
  bool is_unchanged = exists == place->exists && (!exists || is_same(&now, &place->found));
  return is_unchanged ? 0 : RESULT_CHANGED;
}

/* Gives the file without a name this one. 0, or an error number. */
static int link_as(const struct upload *upload, const char *name) {
  char itself[32];
  int directory = upload->place.directory;
  if (linkat(upload->fd, "", directory, name, AT_EMPTY_PATH) == 0) return 0;
  if (errno != ENOENT && errno != EPERM) return errno;
  /* Without CAP_DAC_READ_SEARCH in the first user namespace (open(2), O_TMPFILE). */
  snprintf(itself, sizeof itself, "/proc/self/fd/%d", upload->fd);
  return linkat(AT_FDCWD, itself, directory, name, AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
}

static int put_in_place(const struct file_task *task, struct upload *upload) {
  const struct place *place = &upload->place;
  bool is_exclusive = (task->flags & ASKED_EXCLUSIVE) != 0;
  int error = check_unchanged(task, place);
  if (error != 0) return error;
  if (!upload->is_named) {
    error = place->exists && !is_exclusive ? EEXIST : link_as(upload, place->name);
    if (error != EEXIST || is_exclusive) return error;
    error = choose_name(place->directory);
    if (error != 0) return error;
    has_temporary = 1;
    error = link_as(upload, temporary_name);
    if (error != 0) return error;
  }
  unsigned int flags = is_exclusive ? RENAME_NOREPLACE : 0;
  if (renameat2(place->directory, temporary_name, place->directory, place->name, flags) != 0)
    return errno;
  has_temporary = 0;
  return 0;
}

static int sync_directory(int directory) {
  int fd = open_safely(directory, ".", O_RDONLY | O_DIRECTORY, 0);
  if (fd < 0) return errno;
  int error = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  return error;
}

_Noreturn void write_file(const struct file_task *task) {
  struct upload upload = {.fd = -1};
  struct stat written;
  signal(SIGTERM, terminated);
  struct place *place = &upload.place;
  int error = find_place(task, task->path, (task->flags & ASKED_FOLLOW) != 0, place);
  if (error != 0) finish_with(error);
  mode_t mode = place->exists ? place->found.st_mode : S_IFREG;
  if (S_ISDIR(mode)) finish_with(EISDIR);
  if (!S_ISREG(mode) && !S_ISLNK(mode)) finish_with(RESULT_NOT_A_FILE);
  answer_number(0, 2);
  answer_number(place->exists, 1);
  if (place->exists) answer_stat(&place->found);
  flush_answer();
  /* A link that is replaced itself gives its owner on, but has no mode. */
  if (S_ISLNK(mode)) place->found.st_mode = S_IFLNK | 0644;
  error = open_temporary(&upload);
  if (error != 0) fail(error);
  receive(upload.fd);
  error = dress(task, &upload);
  if (error == 0) error = put_in_place(task, &upload);
  if (error == 0 && (task->flags & ASKED_SYNC) != 0) error = sync_directory(place->directory);
  if (error == 0 && fstat(upload.fd, &written) != 0) error = errno;
  if (error != 0) fail(error);
  answer_number(0, 2);
  answer_stat(&written);
  finish();
}
