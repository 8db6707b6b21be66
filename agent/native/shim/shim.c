/*
 * Starts one virtual machine and stays with it, because the agent may be restarted meanwhile: it
 * logs what the machine prints, and records durably how and when the machine ended. It is small,
 * opens no connection, and ignores every signal but SIGKILL; the machine dies with it.
 *
 * Usage: shim --run DIR --guest DIR --uid N --file-bytes N [--disks DIR --base FILE]
 *             [--preload FILE] [--network FILE --tap NAME]
 *             [--keeper-group FILE]… [--machine-group FILE]…
 *             [--oom-counter FILE] [--passed N] [--kvm 1] -- PROGRAM [ARGUMENT]…
 *   Descriptor 3 is a pipe on which the agent reads `ok`, or why nothing was started.
 *   It holds the file `lock` beside the directory of --run locked while the machine lives (lock.h).
 *   In the directory of --run it makes the sockets `monitor` and `guest`, `machine.json` (the ids
 *   of both processes), `console.log`, and at the end `exit.json`.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../common/lock.h"
#include "../common/shim-files.h"
#include "../common/shim-log.h"
#include "shim-confine.h"

/* To setresuid(2), (uid_t)-1 means "unchanged". */
static const long USER_MAX = UINT32_MAX - 1L;

static void add_group(const char **groups, const char *file) {
  int count = 0;
  while (groups[count] != NULL) count++;
  if (count == GROUPS_MAX) fail_start("arguments", E2BIG);
  groups[count] = file;
}

static void read_option(struct options *options, const char *name, const char *value) {
  const struct {
    const char *name, **target;
  } texts[] = {
      {"--run", &options->run},         {"--disks", &options->disks},
      {"--base", &options->base},       {"--guest", &options->guest},
      {"--preload", &options->preload}, {"--network", &options->network},
      {"--tap", &options->tap},         {"--oom-counter", &options->oom_counter},
  };
  for (size_t index = 0; index < sizeof texts / sizeof *texts; index++)
    if (strcmp(name, texts[index].name) == 0) {
      *texts[index].target = value;
      return;
    }
  if (strcmp(name, "--keeper-group") == 0)
    add_group(options->keeper_groups, value);
  else if (strcmp(name, "--machine-group") == 0)
    add_group(options->machine_groups, value);
  else if (strcmp(name, "--uid") == 0)
    options->uid = read_number(value, USER_MAX);
  else if (strcmp(name, "--file-bytes") == 0)
    options->file_bytes_max = read_number(value, LONG_MAX);
  else if (strcmp(name, "--passed") == 0)
    options->passed = read_number(value, PASSED_MAX);
  else if (strcmp(name, "--kvm") == 0)
    options->with_kvm = read_number(value, 1) != 0;
  else
    fail_start(name, EINVAL);
}

static struct options read_options(int argc, char **argv) {
  struct options options = {0};
  int index = 1;
  for (; index + 1 < argc && strcmp(argv[index], "--") != 0; index += 2)
    read_option(&options, argv[index], argv[index + 1]);
  if (index + 1 >= argc) fail_start("arguments", EINVAL);
  options.program = argv + index + 1;
  if (options.run == NULL || options.guest == NULL) fail_start("arguments", EINVAL);
  if (options.uid == 0) fail_start("arguments", EINVAL);
  if ((options.network == NULL) != (options.tap == NULL)) fail_start("arguments", EINVAL);
  return options;
}

static pid_t start_machine(const struct options *options, const struct handles *handles,
                           int go_ahead) {
  /* A SIGTERM to all processes, as at shutdown, is ignored: the agent asks the guest to end. */
  const int ignored[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGUSR1, SIGUSR2};
  for (size_t index = 0; index < sizeof ignored / sizeof *ignored; index++)
    signal(ignored[index], SIG_IGN);
  if (unshare(CLONE_NEWPID) != 0) fail_start("process namespace", errno);
  pid_t machine = fork();
  if (machine < 0) fail_start("fork", errno);
  if (machine > 0) return machine;
  close(go_ahead); /* Otherwise this process would wait for itself when the shim is gone. */
  struct failure failure = become_machine(options, handles);
  if (write(handles->failure, &failure, sizeof failure) < 0) _exit(2);
  _exit(1);
}

/* Returns once QEMU was executed; ends the shim with the reason if it was not. */
static void await_start(pid_t machine, int failures) {
  struct failure failure;
  ssize_t got;
  do got = read(failures, &failure, sizeof failure);
  while (got < 0 && errno == EINTR);
  close(failures);
  if (got == 0) return;
  kill(machine, SIGKILL);
  while (waitpid(machine, NULL, 0) < 0 && errno == EINTR) continue;
  if (got != sizeof failure) fail_start("start", EIO);
  failure.step[sizeof failure.step - 1] = '\0';
  fail_start(failure.step, failure.error);
}

/* The path must be absolute, or it would follow directories that are renamed. */
static int lock_beside(const char *run) {
  char path[PATH_MAX];
  if (run[0] != '/') fail_start("lock", EINVAL);
  if (snprintf(path, sizeof path, "%s/../lock", run) >= (int)sizeof path)
    fail_start("lock", ENAMETOOLONG);
  int fd = take_lock(path);
  if (fd < 0 && errno == EWOULDBLOCK) fail_start_because("another machine uses its directory");
  if (fd < 0) fail_start("lock", errno);
  return own(fd);
}

int main(int argc, char **argv) {
  int output[2], failures[2], go[2];
  open_report();
  struct options options = read_options(argc, argv);
  umask(077);
  setsid();
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  /* First of all: once it is held nobody takes the directories away. */
  int lock = lock_beside(options.run);
  if (chdir(options.run) != 0) fail_start("run directory", errno);
  if (join_groups(options.keeper_groups) != 0) fail_start("control group", errno);
  unlink("exit.json");
  /* Opened before the start: a running machine must not end because descriptors ran out. */
  int directory = own(open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  own_pipe(output);
  own_pipe(failures);
  own_pipe(go);
  struct handles handles = {
      .monitor = listen_at("monitor"),
      .guest = listen_at("guest"),
      .output = output[1],
      .failure = failures[1],
      .go = go[0],
      .lock = lock,
  };
  unsigned long long kills_before = oom_kills(options.oom_counter);
  pid_t machine = start_machine(&options, &handles, go[1]);
  /* Only QEMU may hold these: connections after its end must be refused, not left waiting. */
  close(handles.monitor);
  close(handles.guest);
  close(output[1]);
  close(failures[1]);
  close(go[0]);
  close_range(FD_REPORT + 1, FD_OWN_MIN - 1, 0);
  write_identity(machine);
  /* EPIPE: the machine process has failed by now, and reported why. */
  if (write(go[1], "", 1) != 1 && errno != EPIPE) fail_start("go-ahead", errno);
  await_start(machine, failures[0]);
  close(go[1]);
  report_started();
  keep_log(output[0], directory);
  record_end(machine, options.oom_counter, kills_before);
  return 0;
}
