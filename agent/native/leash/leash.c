/*
 * Starts a program that must not outlive the agent. The program is killed when the agent ends, and
 * it is in the control group that the next agent empties before anything else. The agent starts
 * every host program this way, except the two that must outlive it (shim.c, guard.c).
 *
 * Usage: leash PARENT [--group FILE] [--lock FILE] [--lock-shared FILE] -- PROGRAM [ARGUMENT]…
 *   PARENT   the agent's process id; nothing is started once the agent is no longer the parent
 *   --group  a cgroup.procs to join. The next agent removes the group once it is empty, so a leash
 *            that comes late finds no group and starts nothing.
 *   --lock   a file to lock exclusively (flock(2)) while the program runs
 *   --lock-shared
 *            the same for one that only reads: any number of them, while nobody has it exclusively
 * Ends as the program does; with 126 when it may not be started, and 127 when it cannot.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { NOT_ALLOWED = 126, NOT_STARTED = 127 };

static _Noreturn void fail(int code, const char *what, int error) {
  dprintf(STDERR_FILENO, "%s: %s\n", what, strerror(error));
  exit(code);
}

static void join_group(const char *file) {
  int fd = open(file, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, "0", 1) != 1) fail(NOT_ALLOWED, file, errno);
  close(fd);
}

/* Without O_CLOEXEC: the program holds the lock by holding the file open. */
static void lock_file(const char *file, int access, int kind) {
  int fd = open(file, access);
  if (fd < 0 || flock(fd, kind | LOCK_NB) != 0) fail(NOT_ALLOWED, file, errno);
}

int main(int argc, char **argv) {
  if (argc < 4) fail(NOT_STARTED, "leash", EINVAL);
  /* First, so that the agent cannot end unnoticed. */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int index = 2;
  for (; index + 1 < argc && strcmp(argv[index], "--") != 0; index += 2) {
    if (strcmp(argv[index], "--group") == 0)
      join_group(argv[index + 1]);
    else if (strcmp(argv[index], "--lock") == 0)
      lock_file(argv[index + 1], O_RDWR, LOCK_EX);
    else if (strcmp(argv[index], "--lock-shared") == 0)
      lock_file(argv[index + 1], O_RDONLY, LOCK_SH);
    else
      fail(NOT_STARTED, argv[index], EINVAL);
  }
  if (index + 1 >= argc) fail(NOT_STARTED, "leash", EINVAL);
  if (getppid() != (pid_t)atol(argv[1])) return NOT_ALLOWED;
  /* Some programs are started with an empty environment. */
  setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 0);
  execvp(argv[index + 1], argv + index + 1);
  fail(NOT_STARTED, argv[index + 1], errno);
}
