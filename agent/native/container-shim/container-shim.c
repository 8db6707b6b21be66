/*
 * Starts the container of one sandbox and stays with it, because the agent may be restarted
 * meanwhile: it logs what the container's first process prints, and records durably how and when
 * that ended. It ignores every signal but SIGKILL.
 *
 * Usage: container-shim --run DIR --image DIR --disk FILE --loop NUMBER --owner UID
 *                       [--keeper-group FILE]… [--oom-counter FILE] -- RUNC [ARGUMENT]…
 *   Descriptor 3 is a pipe on which the agent reads `ok`, or why nothing was started, 4 the user
 *   namespace of the container.
 *   RUNC is to start the container, write its process to `pid`, and end. It runs in the directory
 *   of --run, where it finds `root` and `dev` mounted. Descriptor 3 of the container is the socket
 *   `guest`, at which it listens. `machine.json`, `console.log` and `exit.json` are written as for
 *   a virtual machine (shim.c).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../common/shim-files.h"
#include "../common/shim-log.h"
#include "container-root.h"

enum { FD_USER_NAMESPACE = 4, FD_LISTENER = 3, MESSAGE_BYTES = 2048, HIGHEST_PRIORITY = -20 };

struct options {
  const char *run, *oom_counter;
  const char *keeper_groups[GROUPS_MAX + 1];
  struct container_root root;
  char **program;
};

static void add_group(const char **groups, const char *file) {
  int count = 0;
  while (groups[count] != NULL) count++;
  if (count == GROUPS_MAX) fail_start("arguments", E2BIG);
  groups[count] = file;
}

static void read_option(struct options *options, const char *name, const char *value) {
  if (strcmp(name, "--run") == 0)
    options->run = value;
  else if (strcmp(name, "--image") == 0)
    options->root.image = value;
  else if (strcmp(name, "--disk") == 0)
    options->root.disk = value;
  else if (strcmp(name, "--loop") == 0)
    options->root.first_loop = (int)read_number(value, INT_MAX);
  else if (strcmp(name, "--owner") == 0)
    options->root.owner = (uint32_t)read_number(value, UINT32_MAX - 1L);
  else if (strcmp(name, "--oom-counter") == 0)
    options->oom_counter = value;
  else if (strcmp(name, "--keeper-group") == 0)
    add_group(options->keeper_groups, value);
  else
    fail_start(name, EINVAL);
}

static struct options read_options(int argc, char **argv) {
  struct options options = {0};
  int index = 1;
  for (; index + 1 < argc && strcmp(argv[index], "--") != 0; index += 2)
    read_option(&options, argv[index], argv[index + 1]);
  bool is_complete = index + 1 < argc && options.run != NULL && options.root.image != NULL &&
                     options.root.disk != NULL && options.root.owner != 0;
  if (!is_complete) fail_start("arguments", EINVAL);
  options.program = argv + index + 1;
  return options;
}

static void ignore_signals(void) {
  const int ignored[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGUSR1, SIGUSR2};
  for (size_t index = 0; index < sizeof ignored / sizeof *ignored; index++)
    signal(ignored[index], SIG_IGN);
}

/* Commands begin with these, whatever the agent has; nobody in the container could raise them. */
static void restore_defaults(void) {
  const struct rlimit files = {.rlim_cur = 1024, .rlim_max = 65536};
  for (int number = 1; number < SIGRTMIN; number++) signal(number, SIG_DFL);
  if (setrlimit(RLIMIT_NOFILE, &files) != 0) perror("files");
}

/* Becomes runc, which the container's first process survives. */
static pid_t start_runc(const struct options *options, int listener, int output) {
  pid_t runc = fork();
  if (runc < 0) fail_start("fork", errno);
  if (runc > 0) return runc;
  int nothing = open("/dev/null", O_RDONLY);
  if (dup2(nothing, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0) _exit(1);
  restore_defaults();
  /* The guest agent inherits it, and is heard beside any number of its sandbox's processes. */
  setpriority(PRIO_PROCESS, 0, HIGHEST_PRIORITY);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  mount_container_root(&options->root);
  if (dup2(listener, FD_LISTENER) < 0) _exit(1);
  close_range(FD_LISTENER + 1, FD_OWN_MIN - 1, 0);
  /* The shim has an empty environment. */
  setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 1);
  execvp(options->program[0], options->program);
  dprintf(2, "%s: %s\n", options->program[0], strerror(errno));
  _exit(1);
}

static int status_of(pid_t pid) {
  int status;
  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) fail_start("wait", errno);
  return status;
}

/* Reports the end of what was printed, on one line. */
static _Noreturn void fail_with_output(int output, const char *step) {
  char text[MESSAGE_BYTES + 1];
  ssize_t got = 0, count;
  fcntl(output, F_SETFL, O_NONBLOCK);
  while (got < MESSAGE_BYTES &&
         (count = read(output, text + got, (size_t)(MESSAGE_BYTES - got))) > 0)
    got += count;
  text[got] = '\0';
  for (char *at = text; *at != '\0'; at++)
    if (*at == '\n') *at = at[1] == '\0' ? '\0' : ' ';
  if (got <= 0) fail_start(step, ECHILD);
  fail_start_because(text);
}

static pid_t read_pid(void) {
  char text[32] = {0};
  int fd = open("pid", O_RDONLY | O_CLOEXEC);
  if (fd < 0 || read(fd, text, sizeof text - 1) <= 0) fail_start("pid", errno);
  close(fd);
  return (pid_t)read_number(text, INT_MAX);
}

/* In a process of its own, because it enters the namespace of the container. */
static bool covers_boot_id(pid_t machine, uint32_t owner, int output) {
  pid_t child = fork();
  if (child < 0) fail_start("fork", errno);
  if (child > 0) return status_of(child) == 0;
  if (dup2(output, 2) < 0) _exit(1);
  cover_boot_id(machine, owner);
  _exit(0);
}

int main(int argc, char **argv) {
  int output[2];
  open_report();
  struct options options = read_options(argc, argv);
  options.root.user_namespace = own(FD_USER_NAMESPACE);
  umask(077);
  setsid();
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  ignore_signals();
  if (chdir(options.run) != 0) fail_start("run directory", errno);
  if (join_groups(options.keeper_groups) != 0) fail_start("control group", errno);
  unlink("exit.json");
  int directory = own(open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  own_pipe(output);
  int listener = listen_at("guest");
  unsigned long long kills_before = oom_kills(options.oom_counter);
  /* When runc ends, the container's first process becomes a child of this one. */
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  pid_t runc = start_runc(&options, listener, output[1]);
  close(listener);
  close(options.root.user_namespace);
  if (status_of(runc) != 0) fail_with_output(output[0], "runc");
  pid_t machine = read_pid();
  write_identity(machine);
  if (!covers_boot_id(machine, options.root.owner, output[1]))
    fail_with_output(output[0], "boot id");
  close(output[1]);
  report_started();
  keep_log(output[0], directory);
  record_end(machine, options.oom_counter, kills_before);
  return 0;
}
