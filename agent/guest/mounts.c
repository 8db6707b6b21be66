#define _GNU_SOURCE
#include "mounts.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "channel.h"
#include "loop.h"

enum {
  TRIES_MAX = 100,
  RETRY_MS = 100,
  RECOVER_MS_MAX = 5000, /* A server that does not answer must not hold the guest for longer. */
  LINE_BYTES = 2 * LIMIT_DIRECTORY_MAX,
  SOURCE_BYTES = 128,
};

/*
 * hard: a write waits for a server that is being restarted instead of failing. actimeo: what others
 * change is seen within a second; lookupcache: but a name that was not there is looked up again,
 * because programs read from a missing journal that a file is whole. Locks that a server has
 * forgotten make their file fail with EIO (the kernel's default for NFS), instead of being taken
 * again unseen: see allow_recovery().
 */
#define OPTIONS                                                                            \
  "vers=4.2,proto=tcp,hard,actimeo=1,lookupcache=pos,timeo=50,sec=sys,clientaddr=0.0.0.0," \
  "addr=%s"

/* Whether the kernel asks a server that does not know its locks for them anew. */
#define RECOVER_LOCKS "/sys/module/nfs/parameters/recover_lost_locks"

static bool has_mounts;

/* The process that mounts; one at a time. */
static pid_t mounter;
static uint32_t waiting;
static struct disk_mount mounting;

/* The process that uses the mounted disks while locks are recovered; one at a time. */
static pid_t visitor;
static uint32_t recovering;
static uint64_t deadline_ms;

static int make_directories(const char *path) {
  char prefix[LIMIT_DIRECTORY_MAX + 1];
  snprintf(prefix, sizeof prefix, "%s", path);
  for (char *at = prefix + 1;; at++) {
    char end = *at;
    if (end != '/' && end != '\0') continue;
    *at = '\0';
    if (mkdir(prefix, 0755) != 0 && errno != EEXIST) return errno;
    *at = end;
    if (end == '\0') return 0;
  }
}

/* The kernel escapes spaces and the like, which would only have us mount it once more. */
static bool is_mounted(const char *source, const char *path) {
  static char line[LINE_BYTES];
  char expected[SOURCE_BYTES + LIMIT_DIRECTORY_MAX];
  bool found = false;
  FILE *table = fopen("/proc/self/mounts", "re");
  if (table == NULL) return false;
  int length = snprintf(expected, sizeof expected, "%s %s nfs4 ", source, path);
  while (!found && fgets(line, sizeof line, table) != NULL)
    found = strncmp(line, expected, (size_t)length) == 0;
  fclose(table);
  return found;
}

/* Right after a restore the network, and a server that was just started, may need a moment. */
static bool is_worth_retrying(int error) {
  return error == ECONNREFUSED || error == EHOSTUNREACH || error == ENETUNREACH ||
         error == ECONNRESET || error == ETIMEDOUT || error == EAGAIN;
}

static int try_to_mount(const struct disk_mount *disk) {
  const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000L};
  char address[INET_ADDRSTRLEN], source[SOURCE_BYTES], options[sizeof OPTIONS + INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &disk->server, address, sizeof address);
  snprintf(source, sizeof source, "%s:/%s", address, disk->export);
  snprintf(options, sizeof options, OPTIONS, address);
  if (is_mounted(source, disk->path)) return 0;
  int error = make_directories(disk->path);
  unsigned long flags = MS_NOSUID | MS_NODEV | (disk->read_only ? MS_RDONLY : 0);
  if (error != 0) return error;
  for (int tries = 0; tries < TRIES_MAX; tries++) {
    if (mount(source, disk->path, "nfs4", flags, options) == 0) return 0;
    error = errno;
    if (!is_worth_retrying(error)) break;
    nanosleep(&pause, NULL);
  }
  return error;
}

void mount_disk(const struct disk_mount *disk, uint32_t request) {
  bool is_same =
      strcmp(mounting.export, disk->export) == 0 && strcmp(mounting.path, disk->path) == 0;
  if (mounter > 0 && !is_same) return answer_failed(request, FAILURE_BUSY);
  waiting = request; /* Another host may ask again while it is being mounted. */
  if (mounter > 0) return;
  mounting = *disk;
  mounter = fork();
  if (mounter < 0) {
    waiting = 0;
    return answer_error(request, "mount", errno);
  }
  if (mounter == 0) _exit(try_to_mount(&mounting));
}

static bool visitor_reaped(pid_t pid) {
  if (visitor <= 0 || pid != visitor) return false;
  visitor = 0;
  allow_recovery(false);
  if (recovering != 0) answer_done(recovering);
  recovering = 0;
  return true;
}

bool mount_reaped(pid_t pid, int status) {
  if (visitor_reaped(pid)) return true;
  if (mounter <= 0 || pid != mounter) return false;
  mounter = 0;
  int error = WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
  uint32_t request = waiting;
  waiting = 0;
  if (error == 0) has_mounts = true;
  if (request != 0 && error == 0) answer_done(request);
  if (request != 0 && error != 0) answer_error(request, "mount", error);
  return true;
}

void allow_recovery(bool allowed) {
  if (!has_mounts) return;
  int fd = open(RECOVER_LOCKS, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  /* The locks are lost without it, which the kernel tells their holders. */
  if (write(fd, allowed ? "Y" : "N", 1) != 1) fprintf(stderr, "berth guest: %s\n", RECOVER_LOCKS);
  close(fd);
}

/* Asks the server for the attributes of a mounted directory, whatever the kernel remembers. */
static void visit(const char *path) {
  struct statx status;
  statx(AT_FDCWD, path, AT_STATX_FORCE_SYNC | AT_NO_AUTOMOUNT, STATX_BASIC_STATS, &status);
}

static void visit_all(void) {
  static char line[LINE_BYTES];
  struct mntent entry;
  FILE *table = setmntent("/proc/self/mounts", "re");
  while (table != NULL && getmntent_r(table, &entry, line, sizeof line) != NULL)
    if (strcmp(entry.mnt_type, "nfs4") == 0) visit(entry.mnt_dir);
}

void recover_locks(uint32_t request) {
  if (!has_mounts) return answer_done(request);
  recovering = request; /* Another host may ask again in the meantime. */
  if (visitor > 0) return;
  visitor = fork();
  if (visitor < 0) {
    recovering = 0;
    return answer_error(request, "recover", errno);
  }
  if (visitor == 0) {
    visit_all();
    _exit(0);
  }
  deadline_ms = now_ms() + RECOVER_MS_MAX;
}

uint64_t mounts_tick(void) {
  if (visitor <= 0) return UINT64_MAX;
  if (now_ms() < deadline_ms) return deadline_ms;
  kill(visitor, SIGKILL);
  deadline_ms = UINT64_MAX;
  return UINT64_MAX;
}

void mounts_forget_host(void) { waiting = recovering = 0; }
