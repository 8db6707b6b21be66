/* See processes.h. */
#define _GNU_SOURCE
#include "processes.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include "fuzz.h"
#include "kernel.h"

enum { FIRST_PID = 1000, CHILDREN_MAX = 4096 };

static bool living[CHILDREN_MAX];
static int begun;

void begin_processes(void) {
  memset(living, 0, sizeof living);
  begun = 0;
}

bool is_living_child(pid_t pid) {
  return pid >= FIRST_PID && pid < FIRST_PID + begun && living[pid - FIRST_PID];
}

pid_t new_child(void) {
  if (call_fails()) return -1;
  CHECK(begun < CHILDREN_MAX);
  living[begun] = true;
  return FIRST_PID + begun++;
}

/* The child's side is a run of its own: it ends with the child. */
FAKE pid_t fake_fork(void) { return take_answer() == 0xef ? 0 : new_child(); }

FAKE pid_t fake_vfork(void) { return fake_fork(); }

FAKE int fake_clone(int (*function)(void *), void *stack, int flags, void *argument, ...) {
  (void)function, (void)stack, (void)flags, (void)argument;
  return new_child();
}

/* A child that ended may be another process by now; nobody but the children is ours to end. */
FAKE int fake_kill(pid_t pid, int number) {
  pid_t target = pid < -1 ? -pid : pid;
  CHECK(pid != 0 && target != 1);
  bool is_ours = target >= FIRST_PID && target < FIRST_PID + begun;
  CHECK(!is_ours || is_living_child(target) || number == SIGSTOP || number == SIGCONT);
  if (number >= 0 && number <= SIGRTMAX) return call_fails() ? -1 : 0;
  errno = EINVAL;
  return -1;
}

static pid_t any_child(void) {
  for (int index = 0; index < begun; index++)
    if (living[index]) return FIRST_PID + index;
  return -1;
}

FAKE pid_t fake_waitpid(pid_t pid, int *status, int flags) {
  if (pid == -1 && (pid = any_child()) < 0) {
    errno = ECHILD;
    return -1;
  }
  CHECK(is_living_child(pid));
  if ((flags & WNOHANG) != 0 && (take_answer() & 1) != 0) return 0;
  if (call_fails() && flags == 0) {
    errno = EINTR;
    return -1;
  }
  living[pid - FIRST_PID] = false;
  /* An exit or a signal, never both. */
  uint8_t kind = take_answer(), value = take_answer();
  if (status != NULL) *status = kind & 1 ? 1 + value % 64 : value << 8;
  return pid;
}

FAKE int fake_waitid(idtype_t type, id_t id, siginfo_t *info, int flags) {
  (void)type, (void)id, (void)flags;
  memset(info, 0, sizeof *info);
  if (any_child() >= 0) return 0;
  errno = ECHILD;
  return -1;
}

/* All texts, up to the NULL behind them: what exec(2) would read. */
static void read_texts(char *const *texts) {
  for (; *texts != NULL; texts++) CHECK(strlen(*texts) < 2u << 20);
}

FAKE int fake_execve(const char *path, char *const *arguments, char *const *environment) {
  CHECK(path[0] != '\0');
  read_texts(arguments);
  read_texts(environment);
  if (!call_fails()) stop_subject(0);
  return -1;
}

FAKE int fake_execlp(const char *file, const char *first, const char *option, const char *text,
                     const char *last) {
  char *const arguments[] = {(char *)(uintptr_t)first, (char *)(uintptr_t)option,
                             (char *)(uintptr_t)text, NULL};
  CHECK(last == NULL);
  return fake_execve(file, arguments, arguments);
}

FAKE pid_t fake_getpid(void) { return 1; }
FAKE pid_t fake_setsid(void) { return 1; }
FAKE mode_t fake_umask(mode_t mask) { return mask; }
FAKE int fake_prctl(int option, ...) { return (void)option, call_fails() ? -1 : 0; }
FAKE void (*fake_signal(int number, void (*handler)(int)))(int) { return (void)number, handler; }
FAKE int fake_sigprocmask(int how, const sigset_t *set, sigset_t *former) {
  (void)how;
  if (set != NULL) (void)*(volatile const char *)set;
  if (former != NULL) sigemptyset(former);
  return 0;
}
FAKE int fake_signalfd(int fd, const sigset_t *set, int flags) {
  (void)fd, (void)set, (void)flags;
  return call_fails() ? -1 : new_fd(KIND_SIGNALS, 0);
}
FAKE int fake_setpriority(int which, id_t who, int priority) {
  CHECK(which == PRIO_PROCESS && who == 0 && (priority == 0 || priority == -20));
  return 0;
}
FAKE int fake_setrlimit(int resource, const struct rlimit *limit) {
  return (void)resource, (void)limit, call_fails() ? -1 : 0;
}
FAKE int fake_setgroups(size_t count, const gid_t *groups) {
  for (size_t index = 0; index < count; index++) (void)*(volatile const gid_t *)&groups[index];
  return call_fails() ? -1 : 0;
}
FAKE int fake_setresgid(gid_t real, gid_t effective, gid_t saved) {
  CHECK(real == effective && effective == saved);
  return call_fails() ? -1 : 0;
}
FAKE int fake_setresuid(uid_t real, uid_t effective, uid_t saved) {
  CHECK(real == effective && effective == saved);
  return call_fails() ? -1 : 0;
}
FAKE int fake_getrlimit(int resource, struct rlimit *limit) {
  (void)resource;
  *limit = (struct rlimit){1024, 4096};
  return 0;
}
