/*
 * Operations on files, as children of the guest agent run them: any operation, on file systems that
 * change all the time and answer anything. What they tell the host must be what it reads.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include "../../../../agent/guest/file-task.h"
#include "../../../../agent/guest/files.h"
#include "../../../../agent/guest/wire.h"
#include "../fuzz.h"
#include "../kernel.h"

enum { KIND_INPUT = KIND_OWN, KIND_WATCH, STAT_BYTES = 51, ANSWER_MAX = 8 * MIB, WATCHES_MAX = 12 };

/* Everything that the operation has told. */
static uint8_t told[ANSWER_MAX];
static size_t told_length;

static uint8_t operation[3 * FILE_PATH_MAX];
static size_t operation_length;
static char user[LIMIT_USER_MAX + 1];

static struct {
  bool is_open;
  struct dirent entry;
} directories[FDS_MAX];

static void (*terminated)(int);

ssize_t written_to_kind(int fd, int kind, const void *bytes, size_t length) {
  (void)kind;
  if (fd != 1) return (ssize_t)length;
  uint8_t answer = take_answer();
  if (answer >= 0x80) length = 1 + answer * length / 0x200;
  if (told_length + length > sizeof told) {
    CHECK(operation[0] == OPERATION_READ);
    stop_subject(1); /* Stops the subject, like a host that has enough. */
  }
  memcpy(told + told_length, bytes, length);
  told_length += length;
  return (ssize_t)length;
}

/* Like the kernel: whole events, the names padded with zeros. */
static ssize_t read_events(uint8_t *into, size_t length) {
  static const uint32_t masks[] = {IN_CREATE,   IN_CREATE | IN_ISDIR,   IN_MOVED_FROM | IN_ISDIR,
                                   IN_MOVED_TO, IN_MOVED_TO | IN_ISDIR, IN_DELETE | IN_ISDIR,
                                   IN_MODIFY,   IN_CLOSE_WRITE,         IN_ATTRIB,
                                   IN_IGNORED,  IN_Q_OVERFLOW,          IN_DELETE_SELF,
                                   IN_UNMOUNT,  IN_MOVED_FROM,          IN_MOVE_SELF,
                                   IN_DELETE};
  size_t at = 0;
  for (size_t count = 1 + take_u8() % 8; count > 0 && !input_is_empty(); count--) {
    struct inotify_event event = {.mask = masks[take_u8() % 16], .cookie = 0};
    char name[256] = "";
    size_t name_length = take_u8() % 16;
    event.wd = (event.mask & IN_Q_OVERFLOW) != 0 ? -1 : 1 + take_u8() % WATCHES_MAX;
    for (size_t index = 0; index < name_length; index++) name[index] = (char)('a' + take_u8() % 3);
    event.len = name_length == 0 ? 0 : 16;
    if (at + sizeof event + event.len > length) break;
    memcpy(into + at, &event, sizeof event);
    memcpy(into + at + sizeof event, name, event.len);
    at += sizeof event + event.len;
  }
  return (ssize_t)at;
}

ssize_t read_kind(int fd, int kind, void *into, size_t length) {
  (void)fd;
  if (kind == KIND_WATCH) return read_events(into, length);
  if (kind == KIND_INPUT && terminated != NULL && take_answer() == 0xff) terminated(SIGTERM);
  size_t wanted = 1 + take_u8();
  return input_is_empty() ? 0 : (ssize_t)take_into(into, wanted < length ? wanted : length);
}

/* Many calls with files fail; an input that is used up lets all succeed. */
static bool fails(void) {
  static const int errors[] = {ENOENT,  EISDIR, ENOTEMPTY, EEXIST,     ELOOP, EXDEV,
                               ENOTDIR, EACCES, ENOSPC,    EOPNOTSUPP, EPERM, EINTR,
                               EMFILE,  EIO,    EINVAL,    EBUSY};
  uint8_t answer = take_answer();
  if ((answer & 3) != 3) return false;
  errno = errors[answer >> 2 & 15];
  return true;
}

static int outcome(void) { return fails() ? -1 : 0; }

static int fill(struct stat *found) {
  static const mode_t types[] = {S_IFREG, S_IFDIR, S_IFLNK, S_IFDIR, S_IFREG, S_IFIFO, S_IFSOCK, 0};
  if (fails()) return -1;
  uint8_t answer = take_answer();
  memset(found, 0, sizeof *found);
  found->st_mode = types[answer & 7] | 0644;
  found->st_ino = answer >> 3 & 3;
  found->st_size = answer == 0xff ? INT64_MAX : answer;
  found->st_mtim.tv_sec = answer == 0xfe ? INT64_MIN : 1;
  return 0;
}

int fake_fstat(int fd, struct stat *found) { return kind_of(fd), fill(found); }
int fake_stat(const char *path, struct stat *found) { return (void)strlen(path), fill(found); }
int fake_fstatat(int directory, const char *name, struct stat *found, int flags) {
  CHECK(strlen(name) <= FILE_PATH_MAX && flags == AT_SYMLINK_NOFOLLOW);
  return kind_of(directory), fill(found);
}
int fake_fstatfs(int fd, struct statfs *system) {
  kind_of(fd);
  memset(system, 0, sizeof *system);
  system->f_type = take_answer() == 0xff ? 0x9fa0 : 0xef53;
  return outcome();
}

/* openat2(2), of which nothing may lead through the links of /proc. */
long fake_syscall(long number, ...) {
  va_list arguments;
  va_start(arguments, number);
  int directory = va_arg(arguments, int);
  const char *path = va_arg(arguments, const char *);
  const struct open_how *how = va_arg(arguments, const struct open_how *);
  CHECK(number == SYS_openat2 && va_arg(arguments, size_t) == sizeof *how);
  va_end(arguments);
  CHECK((how->resolve & RESOLVE_NO_MAGICLINKS) != 0 && (how->flags & O_CLOEXEC) != 0);
  CHECK(strlen(path) <= 2 * FILE_PATH_MAX + 1);
  if (directory != AT_FDCWD) kind_of(directory);
  return fails() ? -1 : new_fd(KIND_PLAIN, 0);
}

int fake_openat(int directory, const char *path, int flags, ...) {
  CHECK(strlen(path) <= NAME_MAX && (flags & (O_TMPFILE | O_EXCL)) != 0);
  return kind_of(directory), fails() ? -1 : new_fd(KIND_PLAIN, 0);
}

static int act_on(int directory, const char *name) {
  CHECK(strlen(name) > 0 && strlen(name) <= NAME_MAX && strchr(name, '/') == NULL);
  return kind_of(directory), outcome();
}
int fake_mkdirat(int directory, const char *name, mode_t mode) {
  CHECK(mode == 0700); /* Until it has its owner. */
  return act_on(directory, name);
}
int fake_unlinkat(int directory, const char *name, int flags) {
  return (void)flags, act_on(directory, name);
}
int fake_renameat2(int from, const char *name, int to, const char *other, unsigned flags) {
  return (void)flags, act_on(from, name) | act_on(to, other);
}
int fake_linkat(int from, const char *path, int to, const char *name, int flags) {
  CHECK(flags == AT_EMPTY_PATH ? *path == '\0' : strncmp(path, "/proc/self/fd/", 14) == 0);
  return (void)from, act_on(to, name);
}
ssize_t fake_readlinkat(int directory, const char *name, char *into, size_t size) {
  size_t length = take_answer() * 17u;
  CHECK(strlen(name) <= NAME_MAX);
  kind_of(directory);
  if (fails()) return -1;
  if (length > size) length = size;
  for (size_t index = 0; index < length; index++) into[index] = "/a.b"[take_answer() % 4];
  return (ssize_t)length;
}
ssize_t fake_pread(int fd, void *into, size_t length, off_t offset) {
  (void)offset;
  kind_of(fd);
  if (fails()) return -1;
  size_t wanted = take_u8() * 600u; /* Nothing once the input is used up: the file ends there. */
  if (wanted < length) length = wanted;
  return memset(into, 7, length), (ssize_t)length;
}
int fake_fchmod(int fd, mode_t mode) { return (void)mode, kind_of(fd), outcome(); }
int fake_fchown(int fd, uid_t uid, gid_t gid) { return (void)uid, (void)gid, fake_fchmod(fd, 0); }

DIR *fake_fdopendir(int fd) {
  kind_of(fd);
  if (fails()) return NULL;
  CHECK(!directories[fd].is_open);
  directories[fd].is_open = true;
  return (DIR *)&directories[fd];
}
static int number_of(DIR *directory) {
  long fd = (__typeof__(&directories[0]))directory - directories;
  CHECK(fd >= 0 && fd < FDS_MAX && directories[fd].is_open);
  return (int)fd;
}
int fake_dirfd(DIR *directory) { return number_of(directory); }
void fake_rewinddir(DIR *directory) { number_of(directory); }
int fake_closedir(DIR *directory) {
  int fd = number_of(directory);
  directories[fd].is_open = false;
  set_kind(fd, KIND_CLOSED);
  return 0;
}
/* Other names at each look: short ones, that meet again, and some as long as names may be. */
struct dirent *fake_readdir(DIR *directory) {
  static const uint8_t types[] = {DT_DIR, DT_REG, DT_DIR, DT_UNKNOWN,
                                  DT_LNK, DT_DIR, DT_REG, DT_FIFO};
  struct dirent *entry = &directories[number_of(directory)].entry;
  uint8_t how = take_u8();
  if (how == 0 || fails()) return NULL;
  memset(entry, 0xee, sizeof *entry);
  size_t length = how >= 0xf0 ? NAME_MAX : 1u + how % 3;
  for (size_t index = 0; index < length; index++)
    entry->d_name[index] = "ab.c"[index < 3 ? take_u8() % 4 : 0];
  entry->d_name[length] = '\0';
  entry->d_type = types[how >> 4 & 7];
  return entry;
}

int fake_inotify_init1(int flags) {
  CHECK(flags == IN_CLOEXEC);
  return fails() ? -1 : new_fd(KIND_WATCH, 0);
}
/* Directories that are known already are found again under another path. */
int fake_inotify_add_watch(int fd, const char *path, uint32_t mask) {
  CHECK(kind_of(fd) == KIND_WATCH && strlen(path) <= 2 * FILE_PATH_MAX + 1 && mask != 0);
  return fails() ? -1 : 1 + take_answer() % WATCHES_MAX;
}
int fake_inotify_rm_watch(int fd, int wd) {
  CHECK(kind_of(fd) == KIND_WATCH && wd > 0);
  return outcome();
}
ssize_t fake_getrandom(void *into, size_t length, unsigned flags) {
  return (void)flags, memset(into, 1, length), fails() ? -1 : (ssize_t)length;
}
__sighandler_t fake_signal(int number, __sighandler_t handler) {
  if (number == SIGTERM) terminated = handler;
  return SIG_DFL;
}
mode_t fake_umask(mode_t mask) { return mask; }

static void put(uint64_t value, size_t bytes) {
  for (size_t index = 0; index < bytes; index++)
    operation[operation_length++] = (uint8_t)(value >> (8 * index));
}

/* A path that is mostly one, of few names. */
static void put_path(char first) {
  uint8_t how = take_u8();
  size_t length = how >= 0xf0 ? FILE_PATH_MAX - (how & 3) : how % 16;
  put(length, 2);
  for (size_t index = 0; index < length; index++) {
    char next = index > 40 ? 'x' : "/ab."[take_u8() % 4];
    put((uint8_t)(index == 0 && first != '\0' ? first : next), 1);
  }
}

static void take_operation(void) {
  operation_length = 0;
  uint8_t how = take_u8();
  put(1 + how % 8, 1);
  put(take_u8(), 1);
  for (size_t index = 0; index < 3; index++) put(how & 8 ? UNASKED : take_u16(), 4);
  put(how & 16 ? 1000 : take_u8() % 4, 4);
  put_path(how & 32 ? '\0' : '/');
  put_path('\0');
  if (how & 64) put(0, how & 128 ? 1 : 3); /* More than there should be. */
}

static const uint8_t *at;
static size_t left;
static uint64_t number(size_t bytes) {
  uint64_t value = 0;
  CHECK(left >= bytes);
  for (size_t index = 0; index < bytes; index++) value |= (uint64_t)at[index] << (8 * index);
  at += bytes;
  left -= bytes;
  return value;
}
static void check_path(size_t length) {
  CHECK(length <= FILE_PATH_MAX && length <= left);
  CHECK(length == 0 || (at[0] != '/' && memchr(at, 0, length) == NULL));
  at += length;
  left -= length;
}

/* Checks the list in the host's way (agent/edge/files/worker-answers.ts). */
static void check_list(void) {
  for (size_t length; (length = number(2)) != 0;) {
    check_path(length);
    for (size_t index = 0; index < STAT_BYTES; index++) number(1);
    size_t target = number(2);
    CHECK(target <= PATH_MAX && target <= left);
    at += target;
    left -= target;
  }
  number(1);
  number(2);
  CHECK(left == 0);
}
static void check_events(void) {
  while (left > 0) {
    uint64_t kind = number(1);
    CHECK(kind >= 1 && kind <= 7 && number(1) <= 1);
    check_path(number(2));
    if (kind != 7) continue;
    CHECK(number(2) != 0 || left == 0);
    CHECK(left == 0);
  }
}

int subject_main(int argc, char **argv);
int subject_main(int argc, char **argv) {
  (void)argc, (void)argv;
  run_file_operation(operation, operation_length, user);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  static char *none[] = {NULL};
  begin_input(bytes, length);
  begin_kernel(3);
  set_kind(0, KIND_INPUT);
  memset(directories, 0, sizeof directories);
  terminated = NULL;
  told_length = 0;
  uint8_t mode = take_u8();
  user[take_into(user, mode >> 5)] = '\0';
  take_operation();
  allow_failures(mode & 1);
  int status = run_subject(0, none);
  at = told;
  left = told_length;
  /* A list that could not tell all has ended so that nobody takes it for whole. */
  if (status == 0 && number(2) == 0) {
    if (operation[0] == OPERATION_LIST) check_list();
    if (operation[0] == OPERATION_WATCH) check_events();
  }
  end_input();
  return 0;
}
