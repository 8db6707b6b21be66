/*
 * See kernel.h. Every argument that the kernel would read is read, so that the sanitizers see it.
 */
#define _GNU_SOURCE
#include "kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "fuzz.h"

static int kinds[FDS_MAX];
uint64_t clock_us;

void begin_kernel(int first_fds) {
  memset(kinds, 0, sizeof kinds);
  for (int fd = 0; fd < first_fds; fd++) kinds[fd] = KIND_PLAIN;
  clock_us = 1000000;
}

int new_fd(int kind, int least) {
  int fd = least;
  while (fd < FDS_MAX && kinds[fd] != KIND_CLOSED) fd++;
  if (fd == FDS_MAX) {
    errno = EMFILE;
    return -1;
  }
  kinds[fd] = kind;
  return fd;
}

/*
 * A call with -1 only fails: who could not open goes on to what tells so. A closed one is a defect.
 */
int kind_of(int fd) {
  if (fd == -1) return KIND_NOTHING;
  CHECK(fd >= 0 && fd < FDS_MAX && kinds[fd] != KIND_CLOSED);
  return kinds[fd];
}

bool is_refused(int kind) {
  if (kind != KIND_NOTHING) return call_fails();
  errno = EBADF;
  return true;
}

void set_kind(int fd, int kind) { kinds[fd] = kind; }

int open_fds(void) {
  int count = 0;
  for (int fd = 0; fd < FDS_MAX; fd++) count += kinds[fd] != KIND_CLOSED;
  return count;
}

FAKE int kind_of_path(const char *path) { return path[0] == '\0' ? FD_NONE : KIND_PLAIN; }

FAKE ssize_t read_kind(int fd, int kind, void *into, size_t length) {
  (void)fd;
  (void)kind;
  return (ssize_t)take_into(into, length);
}

FAKE ssize_t written_to_kind(int fd, int kind, const void *bytes, size_t length) {
  (void)fd;
  (void)kind;
  (void)bytes;
  return (ssize_t)length;
}

/* For calls of which only the outcome matters. */
static int outcome(void) { return call_fails() ? -1 : 0; }

static int look_at(const char *text) { return (int)strlen(text) < 0 ? -1 : outcome(); }

static int open_path(const char *path) {
  int kind = kind_of_path(path);
  if (call_fails()) return -1;
  if (kind == FD_NONE) {
    errno = ENOENT;
    return -1;
  }
  return new_fd(kind, 0);
}

FAKE int fake_open(const char *path, int flags, ...) {
  (void)flags;
  return open_path(path);
}

FAKE int fake_openat(int directory, const char *path, int flags, ...) {
  (void)flags;
  if (directory != AT_FDCWD) kind_of(directory);
  return open_path(path);
}

FAKE int fake_close(int fd) {
  if (is_refused(kind_of(fd)) && fd == -1) return -1;
  kinds[fd] = KIND_CLOSED;
  return 0;
}

/* The input says what is in the file, which has the descriptor from now on. */
FAKE FILE *fake_fdopen(int fd, const char *mode) {
  static char text[UINT8_MAX + 1];
  size_t length = take_answer();
  kind_of(fd);
  if (outcome() != 0) return NULL;
  for (size_t index = 0; index < length; index++) text[index] = (char)take_answer();
  text[length] = '\n';
  kinds[fd] = KIND_CLOSED;
  return fmemopen(text, length + 1, mode);
}

FAKE int fake_isatty(int fd) { return kind_of(fd), outcome() == 0; }

FAKE int fake_close_range(unsigned first, unsigned last, unsigned flags) {
  for (unsigned fd = first; flags == 0 && fd <= last && fd < FDS_MAX; fd++) kinds[fd] = KIND_CLOSED;
  return outcome();
}

FAKE ssize_t fake_read(int fd, void *into, size_t length) {
  int kind = kind_of(fd);
  return is_refused(kind) ? -1 : read_kind(fd, kind, into, length);
}

FAKE ssize_t fake_write(int fd, const void *bytes, size_t length) {
  int kind = kind_of(fd);
  CHECK_READABLE(bytes, length);
  return is_refused(kind) ? -1 : written_to_kind(fd, kind, bytes, length);
}

FAKE int fake_pipe2(int ends[2], int flags) {
  (void)flags;
  if (call_fails()) return -1;
  if ((ends[0] = new_fd(KIND_PIPE, 0)) < 0) return -1;
  if ((ends[1] = new_fd(KIND_PIPE, 0)) >= 0) return 0;
  kinds[ends[0]] = KIND_CLOSED;
  return -1;
}

FAKE int fake_dup2(int from, int to) {
  int kind = kind_of(from);
  if (is_refused(kind)) return -1;
  return kinds[to] = kind, to;
}

FAKE int fake_fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  int value = command == F_DUPFD_CLOEXEC ? va_arg(arguments, int) : 0;
  va_end(arguments);
  int kind = kind_of(fd);
  if (is_refused(kind)) return -1;
  if (command == F_GETPIPE_SZ) return 65536;
  return command == F_DUPFD_CLOEXEC ? new_fd(kind, value) : 0;
}

FAKE int fake_memfd_create(const char *name, unsigned flags) {
  (void)flags;
  return look_at(name) != 0 ? -1 : new_fd(KIND_PLAIN, 0);
}

FAKE int fake_socket(int domain, int type, int protocol) {
  (void)domain, (void)type, (void)protocol;
  return call_fails() ? -1 : new_fd(KIND_PLAIN, 0);
}

static int fill_status(struct stat *status) {
  if (call_fails()) return -1;
  memset(status, 0, sizeof *status);
  uint8_t answer = take_answer();
  status->st_mode = answer & 1 ? S_IFLNK | 0777 : S_IFREG | 0644;
  status->st_nlink = answer & 2 ? 2 : 1;
  status->st_ino = answer & 4 ? 7 : 8;
  status->st_size = answer;
  return 0;
}

FAKE int fake_fstat(int fd, struct stat *status) { return kind_of(fd), fill_status(status); }
FAKE int fake_stat(const char *path, struct stat *status) {
  return look_at(path) != 0 ? -1 : fill_status(status);
}
FAKE int fake_lstat(const char *path, struct stat *status) { return fake_stat(path, status); }

FAKE int fake_ftruncate(int fd, off_t length) { return kind_of(fd), (void)length, outcome(); }
FAKE int fake_fsync(int fd) { return kind_of(fd), outcome(); }
FAKE int fake_syncfs(int fd) { return kind_of(fd), outcome(); }
FAKE int fake_mkdir(const char *path, mode_t mode) { return (void)mode, look_at(path); }
FAKE int fake_unlink(const char *path) { return look_at(path); }
FAKE int fake_rmdir(const char *path) { return look_at(path); }
FAKE int fake_chdir(const char *path) { return look_at(path); }
FAKE int fake_chroot(const char *path) { return look_at(path); }
FAKE int fake_access(const char *path, int mode) { return (void)mode, look_at(path); }
FAKE int fake_rename(const char *from, const char *to) { return look_at(from) | look_at(to); }
FAKE int fake_renameat(int of, const char *from, int in, const char *to) {
  return (void)of, (void)in, look_at(from) | look_at(to);
}
FAKE int fake_symlink(const char *from, const char *to) { return look_at(from) | look_at(to); }
FAKE int fake_chmod(const char *path, mode_t mode) { return (void)mode, look_at(path); }
FAKE int fake_chown(const char *path, uid_t user, gid_t group) {
  return (void)user, (void)group, look_at(path);
}
FAKE int fake_fchown(int fd, uid_t user, gid_t group) {
  return (void)user, (void)group, kind_of(fd), outcome();
}
FAKE int fake_mknod(const char *path, mode_t mode, dev_t device) {
  return (void)mode, (void)device, look_at(path);
}
FAKE int fake_umount2(const char *path, int flags) { return (void)flags, look_at(path); }
FAKE int fake_mount(const char *source, const char *target, const char *type, unsigned long flags,
                    const void *data) {
  (void)flags;
  size_t length = source == NULL ? 0 : strlen(source);
  length += type == NULL ? 0 : strlen(type);
  length += data == NULL ? 0 : strlen(data);
  return look_at(target) | (length > SIZE_MAX / 2 ? -1 : 0);
}

FAKE int fake_clock_gettime(clockid_t clock, struct timespec *now) {
  (void)clock;
  clock_us++;
  *now = (struct timespec){.tv_sec = (time_t)(clock_us / 1000000),
                           .tv_nsec = (long)(clock_us % 1000000) * 1000};
  return 0;
}

FAKE int fake_nanosleep(const struct timespec *wanted, struct timespec *left) {
  (void)left;
  clock_us += (uint64_t)wanted->tv_sec * 1000000 + (uint64_t)wanted->tv_nsec / 1000;
  return 0;
}

FAKE int fake_usleep(unsigned us) {
  clock_us += us;
  return 0;
}

FAKE _Noreturn void fake_exit(int status) { stop_subject(status); }
FAKE _Noreturn void fake__exit(int status) { stop_subject(status); }

/* Formats a subject's messages and drops them. */
FAKE int fake_fprintf(FILE *file, const char *format, ...) {
  va_list arguments;
  char text[4096];
  (void)file;
  va_start(arguments, format);
  int length = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return length;
}

FAKE int fake_dprintf(int fd, const char *format, ...) {
  va_list arguments;
  char text[8192];
  kind_of(fd);
  va_start(arguments, format);
  int length = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return length;
}

FAKE size_t fake_fwrite(const void *bytes, size_t size, size_t count, FILE *file) {
  (void)file;
  CHECK_READABLE(bytes, size * count);
  return count;
}
