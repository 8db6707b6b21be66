#define _GNU_SOURCE
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel.h"
#include "freeze.h"
#include "loop.h"
#include "spawn.h"

enum { PATH_BYTES = 256, LOOK_MS = 5, EMPTY_MS_MAX = 1000, MOVES_MAX = 100 };

/* ENDING: its shell was reaped, and what it had started is being killed. */
static enum { NONE, RUNNING, ENDING } state;

static pid_t shell;
static int failure = -1; /* The pipe by which a shell that could not be executed says why. */
static uint32_t waiting; /* 0 when nobody waits for the answer. */
static uint64_t deadline_ms;
static uint8_t flags, status;
static struct spawn_failure refused;

static void group_path(const char *name, char *path) {
  snprintf(path, PATH_BYTES, "%s.hook%s", process_group(), name);
}

static bool has_group(void) { return process_group()[0] != '\0'; }

static int write_text(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  int error = write(fd, text, strlen(text)) < 0 ? errno : 0;
  close(fd);
  return error;
}

static void kill_tree(void) {
  char path[PATH_BYTES];
  group_path("/cgroup.kill", path);
  if (has_group() && write_text(path, "1") == 0) return;
  kill(-shell, SIGKILL);
  if (state == RUNNING) kill(shell, SIGKILL); /* Before setsid(2) there is no group. */
}

/* Lists the pids of the group; false when there are none. */
static bool read_group(char *pids, size_t size) {
  char path[PATH_BYTES];
  group_path("/cgroup.procs", path);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t got = read(fd, pids, size - 1);
  close(fd);
  pids[got < 0 ? 0 : got] = '\0';
  return got > 0;
}

/* Processes that the hook leaves join the others, and continue with them. */
static void keep_survivors(void) {
  char pids[4096], target[PATH_BYTES], *rest;
  snprintf(target, sizeof target, "%s/cgroup.procs", process_group());
  for (int moves = 0; moves < MOVES_MAX && read_group(pids, sizeof pids); moves++)
    for (char *pid = strtok_r(pids, "\n", &rest); pid != NULL; pid = strtok_r(NULL, "\n", &rest))
      write_text(target, pid);
}

static int make_group(void) {
  char path[PATH_BYTES];
  if (!has_group()) return 0;
  group_path("", path);
  if (mkdir(path, 0755) != 0 && errno != EEXIST) return errno;
  set_hook_group(path);
  return 0;
}

void run_hook(const char *command, size_t length, uint32_t timeout_ms, uint32_t request) {
  struct process_spec spec = {.hook = true,
                              .command = command,
                              .command_length = length,
                              .environment = "",
                              .directory = "",
                              .user = ""};
  struct spawned spawned;
  if (state != NONE) return answer_failed(request, FAILURE_BUSY);
  int error = make_group();
  if (error == 0) error = spawn(&spec, &spawned);
  if (error != 0) return answer_error(request, "hook", error);
  state = RUNNING;
  shell = spawned.pid;
  failure = spawned.failure;
  waiting = request;
  flags = status = 0;
  deadline_ms = now_ms() + timeout_ms;
}

void end_hook(void) {
  waiting = 0;
  if (state != NONE) kill_tree();
}

static void answer(void) {
  if (waiting == 0) return;
  if (refused.error != 0) return answer_error(waiting, refused.step, refused.error);
  struct writer *writer = new_frame(KIND_HOOKED, waiting);
  put_number(writer, flags, 1);
  put_number(writer, status, 1);
  send_frame(writer);
}

bool hook_reaped(pid_t pid, int how) {
  if (state != RUNNING || pid != shell) return false;
  ssize_t got = read(failure, &refused, sizeof refused);
  if (got != sizeof refused) refused.error = 0;
  refused.step[sizeof refused.step - 1] = '\0';
  close(failure);
  failure = -1;
  state = ENDING;
  if (WIFSIGNALED(how)) flags |= FLAG_SIGNALLED;
  status = (uint8_t)(WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
  if (status == 0 && flags == 0 && waiting != 0 && has_group()) keep_survivors();
  kill_tree();
  deadline_ms = now_ms() + EMPTY_MS_MAX;
  return true;
}

static uint64_t tick_ending(void) {
  char pids[16], path[PATH_BYTES];
  uint64_t now = now_ms();
  if (has_group() && now < deadline_ms && read_group(pids, sizeof pids)) return now + LOOK_MS;
  group_path("", path);
  if (has_group()) rmdir(path);
  state = NONE;
  answer();
  waiting = 0;
  return 0;
}

uint64_t hook_tick(void) {
  if (state == NONE) return UINT64_MAX;
  if (state == ENDING) return tick_ending();
  if (now_ms() < deadline_ms) return deadline_ms;
  flags |= FLAG_TIMED_OUT;
  deadline_ms = UINT64_MAX;
  kill_tree();
  return UINT64_MAX;
}
