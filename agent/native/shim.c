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
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim-confine.h"
#include "shim-log.h"

enum { FD_REPORT = 3, TEXT_BYTES = 4096 };

/* To setresuid(2), (uid_t)-1 means "unchanged". */
static const long USER_MAX = UINT32_MAX - 1L;

static int report = -1;

static _Noreturn void fail(const char *step, int error) {
  if (report >= 0) dprintf(report, "%s: %s\n", step, strerror(error));
  exit(1);
}

/* The bound matters for users: the kernel takes 32 bits, so a larger number could become root's. */
static long number(const char *text, long max) {
  char *end;
  errno = 0;
  long value = strtol(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0') fail("arguments", EINVAL);
  if (value < 0 || value > max) fail("arguments", ERANGE);
  return value;
}

static void add_group(const char **groups, const char *file) {
  int count = 0;
  while (groups[count] != NULL) count++;
  if (count == GROUPS_MAX) fail("arguments", E2BIG);
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
    options->uid = number(value, USER_MAX);
  else if (strcmp(name, "--file-bytes") == 0)
    options->file_bytes_max = number(value, LONG_MAX);
  else if (strcmp(name, "--passed") == 0)
    options->passed = number(value, PASSED_MAX);
  else if (strcmp(name, "--kvm") == 0)
    options->with_kvm = number(value, 1) != 0;
  else
    fail(name, EINVAL);
}

static struct options read_options(int argc, char **argv) {
  struct options options = {0};
  int index = 1;
  for (; index + 1 < argc && strcmp(argv[index], "--") != 0; index += 2)
    read_option(&options, argv[index], argv[index + 1]);
  if (index + 1 >= argc) fail("arguments", EINVAL);
  options.program = argv + index + 1;
  if (options.run == NULL || options.guest == NULL) fail("arguments", EINVAL);
  if (options.uid == 0) fail("arguments", EINVAL);
  if ((options.network == NULL) != (options.tap == NULL)) fail("arguments", EINVAL);
  return options;
}

static int own(int fd) {
  int moved = fcntl(fd, F_DUPFD_CLOEXEC, FD_OWN_MIN);
  if (fd < 0 || moved < 0) fail("descriptors", errno);
  close(fd);
  return moved;
}

static void own_pipe(int ends[2]) {
  if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe", errno);
  ends[0] = own(ends[0]);
  ends[1] = own(ends[1]);
}

/* A relative name, in the run directory: an absolute path may exceed the length of an address. */
static int listen_at(const char *name) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  int fd = own(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  snprintf(address.sun_path, sizeof address.sun_path, "%s", name);
  unlink(name);
  if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0) fail(name, errno);
  if (chmod(name, 0600) != 0 || listen(fd, 1) != 0) fail(name, errno);
  return fd;
}

/* Writes the whole file durably, or nothing. */
static int write_file(const char *name, const char *text) {
  char partial[64];
  size_t length = strlen(text);
  snprintf(partial, sizeof partial, "%s.partial", name);
  int fd = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return -1;
  bool is_written = write(fd, text, length) == (ssize_t)length && fsync(fd) == 0;
  close(fd);
  if (!is_written || rename(partial, name) != 0) return -1;
  int directory = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return -1;
  int result = fsync(directory);
  close(directory);
  return result;
}

static bool read_text(const char *path, char *text, size_t size) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t got = read(fd, text, size - 1);
  close(fd);
  text[got < 0 ? 0 : got] = '\0';
  return got > 0;
}

/* Field 22 of proc_pid_stat(5). Together with the pid it identifies a process for ever. */
static unsigned long long start_time(pid_t pid) {
  char path[64], text[TEXT_BYTES];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  if (!read_text(path, text, sizeof text)) return 0;
  const char *at = strrchr(text, ')'); /* The name before it may contain anything. */
  for (int field = 2; at != NULL && field < 22; field++) at = strchr(at + 1, ' ');
  return at == NULL ? 0 : strtoull(at + 1, NULL, 10);
}

/* In the form that shared/process-id.ts reads. */
static void write_identity(pid_t machine) {
  char boot[64], text[512];
  if (!read_text("/proc/sys/kernel/random/boot_id", boot, sizeof boot)) fail("boot id", errno);
  boot[strcspn(boot, "\n")] = '\0';
  snprintf(text, sizeof text,
           "{\"hostBootId\":\"%s\",\"machine\":{\"pid\":%d,\"startTime\":\"%s/%llu\"},"
           "\"keeper\":{\"pid\":%d,\"startTime\":\"%s/%llu\"}}\n",
           boot, (int)machine, boot, start_time(machine), (int)getpid(), boot,
           start_time(getpid()));
  if (write_file("machine.json", text) != 0) fail("machine.json", errno);
}

static unsigned long long oom_kills(const char *path) {
  char text[TEXT_BYTES];
  if (path == NULL || !read_text(path, text, sizeof text)) return 0;
  const char *line = strncmp(text, "oom_kill ", 9) == 0 ? text : strstr(text, "\noom_kill ");
  return line == NULL ? 0 : strtoull(strchr(line, ' ') + 1, NULL, 10);
}

/* By the host's wall clock: the agent that reads it may have been started after a reboot. */
static long long unix_time_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void write_end(int status, unsigned long long kills, long long ended_at_ms) {
  char text[256];
  bool is_signal = WIFSIGNALED(status);
  snprintf(text, sizeof text, "{\"%s\":%d,\"oomKills\":%llu,\"endedAtMs\":%lld}\n",
           is_signal ? "signal" : "code", is_signal ? WTERMSIG(status) : WEXITSTATUS(status), kills,
           ended_at_ms);
  write_file("exit.json", text);
}

static pid_t start_machine(const struct options *options, const struct handles *handles,
                           int go_ahead) {
  /* A SIGTERM to all processes, as at shutdown, is ignored: the agent asks the guest to end. */
  const int ignored[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGUSR1, SIGUSR2};
  for (size_t index = 0; index < sizeof ignored / sizeof *ignored; index++)
    signal(ignored[index], SIG_IGN);
  if (unshare(CLONE_NEWPID) != 0) fail("process namespace", errno);
  pid_t machine = fork();
  if (machine < 0) fail("fork", errno);
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
  if (got != sizeof failure) fail("start", EIO);
  failure.step[sizeof failure.step - 1] = '\0';
  fail(failure.step, failure.error);
}

static void supervise(pid_t machine, int output, int directory, const struct options *options,
                      unsigned long long kills_before) {
  int status;
  keep_log(output, directory);
  while (waitpid(machine, &status, 0) < 0)
    if (errno != EINTR) return;
  long long ended_at_ms = unix_time_ms();
  unsigned long long kills = oom_kills(options->oom_counter);
  write_end(status, kills > kills_before ? kills - kills_before : 0, ended_at_ms);
}

int main(int argc, char **argv) {
  int output[2], failures[2], go[2];
  report = own(FD_REPORT);
  struct options options = read_options(argc, argv);
  umask(077);
  setsid();
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  if (chdir(options.run) != 0) fail("run directory", errno);
  if (join_groups(options.keeper_groups) != 0) fail("control group", errno);
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
  if (write(go[1], "", 1) != 1 && errno != EPIPE) fail("go-ahead", errno);
  await_start(machine, failures[0]);
  close(go[1]);
  if (write(report, "ok\n", 3) == 3) close(report); /* The agent may be gone already. */
  report = -1;
  supervise(machine, output[0], directory, &options, kills_before);
  return 0;
}
