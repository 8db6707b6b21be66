#define _GNU_SOURCE
#include "freeze.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel.h"
#include "loop.h"
#include "mounts.h"
#include "spawn.h"
#include "stop.h"

enum { LOOK_MS = 5 };

/* STOPPING: waits until all processes stand still. SYNCING: a child of ours syncs the disks. */
static enum { RUNNING, STOPPING, SYNCING, FROZEN } state;

static char group[200];
static uint32_t waiting;
static uint64_t look_at_ms, deadline_ms;
static pid_t syncer;

int use_group(const char *directory) {
  if (mkdir(directory, 0755) != 0 && errno != EEXIST) return errno;
  snprintf(group, sizeof group, "%s", directory);
  set_process_group(group);
  return 0;
}

const char *process_group(void) { return group; }

bool is_frozen(void) { return state != RUNNING; }

static int set_group_frozen(bool frozen) {
  char path[256];
  snprintf(path, sizeof path, "%s/cgroup.freeze", group);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  int error = write(fd, frozen ? "1" : "0", 1) == 1 ? 0 : errno;
  close(fd);
  return error;
}

static bool group_has(const char *event) {
  char path[256], events[256];
  snprintf(path, sizeof path, "%s/cgroup.events", group);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t got = read(fd, events, sizeof events - 1);
  close(fd);
  events[got < 0 ? 0 : got] = '\0';
  return strstr(events, event) != NULL;
}

/* The group has no process to stop or resume, and none can start meanwhile. */
static bool is_empty;

static int begin_stopping(void) {
  if (group[0] == '\0') return 0;
  is_empty = group_has("populated 0");
  return is_empty ? 0 : set_group_frozen(true);
}

static bool all_have_stopped(void) {
  return group[0] == '\0' ? stop_all() : is_empty || group_has("frozen 1");
}

static int resume_all(void) {
  state = RUNNING;
  allow_recovery(false);
  if (group[0] == '\0')
    continue_stopped();
  else if (!is_empty)
    return set_group_frozen(false);
  return 0;
}

static void answer_freeze(uint16_t failure) {
  if (failure != 0) resume_all();
  if (waiting == 0) return;
  if (failure == 0)
    answer_done(waiting);
  else
    answer_failed(waiting, failure);
  waiting = 0;
}

static int sync_all(void *unused) {
  (void)unused;
  sync();
  _exit(0);
}

/*
 * Syncs in a child, because a disk that hangs must not silence us. The file systems are synced, not
 * frozen: memory and disk are captured at the same moment, and a disk without its memory is as
 * after a crash, which a journal handles. The child shares our memory: with a copy of it we would
 * fault on every page once we continue.
 */
static void begin_syncing(void) {
  static _Alignas(16) char stack[16 * 1024];
  syncer = clone(sync_all, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
  state = SYNCING;
  if (syncer < 0) answer_freeze(FAILURE_SYSTEM);
}

void freeze(uint32_t timeout_ms, uint32_t request) {
  if (state == FROZEN) return answer_done(request);
  /* The child of a freeze that timed out may still be syncing, on the only stack. */
  if (state != RUNNING || syncer > 0) return answer_failed(request, FAILURE_BUSY);
  int error = begin_stopping();
  if (error != 0) return answer_error(request, "freeze", error);
  state = STOPPING;
  allow_recovery(true);
  waiting = request;
  look_at_ms = now_ms();
  deadline_ms = look_at_ms + timeout_ms;
}

int end_freeze(void) {
  if (state == STOPPING || state == SYNCING) answer_freeze(FAILURE_BUSY);
  return state == RUNNING ? 0 : resume_all();
}

void thaw(uint32_t request) {
  int error = end_freeze();
  if (error != 0) return answer_error(request, "thaw", error);
  answer_done(request);
}

void freeze_forget_host(void) { waiting = 0; }

bool freeze_reaped(pid_t pid, int status) {
  if (syncer <= 0 || pid != syncer) return false;
  syncer = 0;
  if (state != SYNCING) return true; /* The freeze timed out before. */
  bool done = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (done) state = FROZEN;
  answer_freeze(done ? 0 : FAILURE_SYSTEM);
  return true;
}

uint64_t freeze_tick(void) {
  if (state != STOPPING && state != SYNCING) return UINT64_MAX;
  uint64_t now = now_ms();
  if (now >= deadline_ms) {
    answer_freeze(FAILURE_TIMEOUT);
    return UINT64_MAX;
  }
  if (state == STOPPING && now >= look_at_ms) {
    look_at_ms = now + LOOK_MS;
    if (all_have_stopped()) begin_syncing();
  }
  uint64_t next = state == STOPPING ? look_at_ms : deadline_ms;
  return next < deadline_ms ? next : deadline_ms;
}
