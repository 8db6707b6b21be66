/*
 * Loaded into the NFS server before its other libraries (LD_PRELOAD): keeps each WAL database of
 * SQLite to one kernel at a time, and gives a guest that comes back from a pause its locks again.
 *
 * The processes that use a database in WAL mode share its index (`-shm`) through a memory map, and
 * maps are not shared between kernels: a guest and a command that write by different indexes
 * corrupt the database. Every connection holds a shared lock on it for as long as it maps the index
 * (SHARED_FIRST in SQLite's os.h), from before it opens log and index. A guest's lock there is an
 * exclusive one on the host, the guard, once for all processes of the guest. So whichever kernel
 * comes second is told SQLITE_BUSY, and opens log and index only when the first has left them.
 *
 * The host keeps the guards of a paused guest, and gives them to its next server; all other locks
 * are lost with the server. While the guest recovers, before its processes continue, it asks for
 * all of its locks anew. It gets SQLite's where the content of the file has not changed since, and
 * nobody has a lock against it: nobody can have used the database meanwhile. Any other lock may
 * have protected what is not in the file, so it stays lost, and its file answers EBADF in the guest
 * (ESTALE is the only answer to which its kernel does not continue without the lock).
 */
#define _GNU_SOURCE
#include "wal-locks.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "seal-handles.h"

enum {
  /* Bytes that SQLite locks, of the index and of the database, and those that are held shared. */
  INDEX_LOCKS = 120,
  INDEX_LOCKS_END = 129,
  DATABASE_LOCKS = 0x40000000,
  SHARED_LOCKS = 0x40000002,
  DATABASE_LOCKS_END = 0x40000200,
  /* The first page begins with a text, and has two numbers that are 2 in WAL mode. */
  VERSIONS = 18,
  HEAD_BYTES = 20,
};
static const char head_text[16] = "SQLite format 3";

static const int64_t NANOSECONDS = 1000000000;

struct guard {
  dev_t device;
  ino_t inode;
  unsigned claims; /* Descriptors of the server for which it is held; 0: free. */
  bool is_kept;    /* Since before the pause, until the guest has recovered: one of the claims. */
  int fd;          /* From FIRST_GUARD on, where the host looks for it. */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct guard guards[GUARDS_MAX];
static struct guard *claimed[SERVER_FILES_MAX];
static unsigned kept_guards;

static int lock_call(int fd, int command, struct flock *lock) {
  return (int)syscall(SYS_fcntl, fd, command, lock);
}

/* Whether it concerns the bytes that a connection to the database holds. */
static bool is_of_connection(const struct flock *lock) {
  return lock->l_start < DATABASE_LOCKS_END &&
         (lock->l_len == 0 || lock->l_start + lock->l_len > SHARED_LOCKS);
}

/* The server's descriptors can be read where they can be written. */
static bool is_wal_database(int fd) {
  char head[HEAD_BYTES];
  return pread(fd, head, sizeof head, 0) == sizeof head &&
         memcmp(head, head_text, sizeof head_text) == 0 && head[VERSIONS] == 2 &&
         head[VERSIONS + 1] == 2;
}

static bool is_within(const struct flock *lock, off_t start, off_t end) {
  return lock->l_len > 0 && lock->l_start >= start && lock->l_start + lock->l_len <= end;
}

static bool is_sqlites(const struct flock *lock) {
  return is_within(lock, INDEX_LOCKS, INDEX_LOCKS_END) ||
         is_within(lock, DATABASE_LOCKS, DATABASE_LOCKS_END);
}

/* 0: the guest has no locks to recover. */
static int64_t recovers_since(void) {
  const char *text = getenv(RECOVERS_SINCE);
  return text == NULL ? 0 : strtoll(text, NULL, 10);
}

/* The guest's processes stand still, and its kernel asks for the locks that it had. */
static bool is_recovering(void) {
  struct pollfd ended = {.fd = FD_RECOVERY};
  return recovers_since() != 0 && poll(&ended, 1, 0) == 0;
}

/* By its content: SQLite sets the owner of an index as it opens it. */
static bool has_changed(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0) return true;
  int64_t changed = status.st_mtim.tv_sec * NANOSECONDS + status.st_mtim.tv_nsec;
  return changed > recovers_since();
}

/* The file once more, so that the lock does not depend on what the server does with its own. */
static int open_again(int fd) {
  _Alignas(struct file_handle) uint8_t memory[sizeof(struct file_handle) + MAX_HANDLE_SZ];
  struct file_handle *handle = (struct file_handle *)memory;
  int mount;
  handle->handle_bytes = MAX_HANDLE_SZ;
  if (syscall(SYS_name_to_handle_at, fd, "", handle, &mount, AT_EMPTY_PATH) != 0) return -1;
  const int flags = O_RDWR | O_CLOEXEC;
  return (int)syscall(SYS_open_by_handle_at, fd, handle, flags, (long)SEALED_CALL);
}

static struct guard *find_guard(const struct stat *status) {
  for (size_t index = 0; index < GUARDS_MAX; index++)
    if (guards[index].claims > 0 && guards[index].device == status->st_dev &&
        guards[index].inode == status->st_ino)
      return &guards[index];
  return NULL;
}

/*
 * Puts descriptor and lock where the host looks for guards, beside what the server may have there
 * when it has many files open. Takes the descriptor.
 */
static int place_guard(int fd, const struct stat *status, struct guard **placed) {
  struct guard *guard = guards;
  while (guard < guards + GUARDS_MAX && guard->claims > 0) guard++;
  int error = guard == guards + GUARDS_MAX ? ENOLCK : 0, moved = -1;
  if (error == 0) {
    moved = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, FIRST_GUARD);
    if (moved < 0) error = errno;
  }
  syscall(SYS_close, fd);
  if (error != 0) return error;
  *guard = (struct guard){.device = status->st_dev, .inode = status->st_ino, .fd = moved};
  *placed = guard;
  return 0;
}

static const struct flock guarded = {
    .l_type = F_WRLCK, .l_start = SHARED_LOCKS, .l_len = DATABASE_LOCKS_END - SHARED_LOCKS};

/* EPERM: a guest that only reads the disk has no use of a database that others may write. */
static int make_guard(int fd, const struct stat *status, struct guard **made) {
  struct flock lock = guarded;
  int opened = open_again(fd);
  if (opened < 0) return errno == EROFS ? EPERM : errno;
  if (lock_call(opened, F_OFD_SETLK, &lock) == 0) return place_guard(opened, status, made);
  int error = errno;
  syscall(SYS_close, opened);
  return error;
}

/* Without the lock it was another descriptor of the former server. */
static bool is_guard(int fd, const struct stat *status) {
  struct flock lock = guarded;
  return S_ISREG(status->st_mode) && lock_call(fd, F_OFD_SETLK, &lock) == 0;
}

static __attribute__((constructor)) void keep_guards(void) {
  struct guard *guard;
  struct stat status;
  for (int fd = FD_KEPT_GUARDS; fstat(fd, &status) == 0; fd++) {
    if (!is_guard(fd, &status)) {
      syscall(SYS_close, fd);
      continue;
    }
    if (place_guard(fd, &status, &guard) != 0) continue;
    guard->claims = 1;
    guard->is_kept = true;
    kept_guards++;
  }
}

static int claim(int fd) {
  struct stat status;
  if (fd >= SERVER_FILES_MAX || claimed[fd] != NULL) return 0;
  if (fstat(fd, &status) != 0) return errno;
  struct guard *guard = find_guard(&status);
  int error = guard == NULL ? make_guard(fd, &status, &guard) : 0;
  if (error != 0) return error;
  guard->claims++;
  claimed[fd] = guard;
  return 0;
}

static void release_claim(struct guard *guard) {
  if (--guard->claims == 0) syscall(SYS_close, guard->fd);
}

static void disclaim(int fd) {
  struct guard *guard = fd >= 0 && fd < SERVER_FILES_MAX ? claimed[fd] : NULL;
  if (guard == NULL) return;
  claimed[fd] = NULL;
  release_claim(guard);
}

/* The guest has its locks by now, or has lost them. */
static void release_kept(void) {
  for (struct guard *guard = guards; kept_guards > 0 && guard < guards + GUARDS_MAX; guard++) {
    if (guard->claims == 0 || !guard->is_kept) continue;
    guard->is_kept = false;
    kept_guards--;
    release_claim(guard);
  }
}

/* The guard is an exclusive lock already, and the server knows of those of its other clients. */
static int hold_database(int fd) {
  struct flock former = guarded; /* While it was not in WAL mode. */
  former.l_type = F_UNLCK;
  return lock_call(fd, F_OFD_SETLK, &former) != 0 ? errno : claim(fd);
}

/* is_wal: see wants_guard(). */
static int set_lock(int fd, struct flock *lock, bool is_wal) {
  if (is_wal) return hold_database(fd);
  if (is_of_connection(lock)) disclaim(fd);
  return lock_call(fd, F_OFD_SETLK, lock) == 0 ? 0 : errno;
}

static int recover_lock(int fd, struct flock *lock, bool is_wal) {
  return is_sqlites(lock) && !has_changed(fd) && set_lock(fd, lock, is_wal) == 0 ? 0 : ESTALE;
}

/* Reads the file, which may take long: the disks of a guest are not to wait for one another. */
static bool wants_guard(int fd, const struct flock *lock) {
  return lock->l_type != F_UNLCK && is_of_connection(lock) && is_wal_database(fd);
}

static int change_lock(int fd, struct flock *lock) {
  bool is_wal = wants_guard(fd, lock);
  pthread_mutex_lock(&mutex);
  bool recovering = is_recovering();
  if (!recovering) release_kept();
  bool is_recovery = recovering && lock->l_type != F_UNLCK;
  int error = is_recovery ? recover_lock(fd, lock, is_wal) : set_lock(fd, lock, is_wal);
  pthread_mutex_unlock(&mutex);
  errno = error;
  return error == 0 ? 0 : -1;
}

static int test_lock(int fd, int command, struct flock *lock) {
  struct stat status;
  if (!wants_guard(fd, lock)) return lock_call(fd, command, lock);
  pthread_mutex_lock(&mutex);
  struct guard *guard = fstat(fd, &status) == 0 ? find_guard(&status) : NULL;
  /* Against a guard, which is the guest's own lock in any case. */
  lock->l_type = F_WRLCK;
  lock->l_pid = 0;
  int result = lock_call(guard == NULL ? fd : guard->fd, F_OFD_GETLK, lock);
  pthread_mutex_unlock(&mutex);
  return result;
}

/* The server's programs call it by this name; all of them with one argument at most. */
int fcntl64(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void *argument = va_arg(arguments, void *);
  va_end(arguments);
  if (command == F_OFD_SETLK) return change_lock(fd, argument);
  if (command == F_OFD_GETLK || command == F_GETLK) return test_lock(fd, command, argument);
  return (int)syscall(SYS_fcntl, fd, command, argument);
}

int close(int fd) {
  pthread_mutex_lock(&mutex);
  if (kept_guards > 0 && !is_recovering()) release_kept();
  disclaim(fd);
  pthread_mutex_unlock(&mutex);
  return (int)syscall(SYS_close, fd);
}
