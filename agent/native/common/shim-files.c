#define _GNU_SOURCE
#include "shim-files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_BYTES = 4096 };

static int report = -1;

void open_report(void) { report = own(FD_REPORT); }

void report_started(void) {
  if (write(report, "ok\n", 3) == 3) close(report); /* The agent may be gone already. */
  report = -1;
}

_Noreturn void fail_start_because(const char *reason) {
  if (report >= 0) dprintf(report, "%s\n", reason);
  exit(1);
}

_Noreturn void fail_start(const char *step, int error) {
  char reason[256];
  snprintf(reason, sizeof reason, "%s: %s", step, strerror(error));
  fail_start_because(reason);
}

/* The bound matters for users: the kernel takes 32 bits, so a larger number could become root's. */
long read_number(const char *text, long max) {
  char *end;
  errno = 0;
  long value = strtol(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0') fail_start("arguments", EINVAL);
  if (value < 0 || value > max) fail_start("arguments", ERANGE);
  return value;
}

int own(int fd) {
  int moved = fcntl(fd, F_DUPFD_CLOEXEC, FD_OWN_MIN);
  if (fd < 0 || moved < 0) fail_start("descriptors", errno);
  close(fd);
  return moved;
}

void own_pipe(int ends[2]) {
  if (pipe2(ends, O_CLOEXEC) != 0) fail_start("pipe", errno);
  ends[0] = own(ends[0]);
  ends[1] = own(ends[1]);
}

/* A relative name, in the run directory: an absolute path may exceed the length of an address. */
int listen_at(const char *name) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  int fd = own(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  snprintf(address.sun_path, sizeof address.sun_path, "%s", name);
  unlink(name);
  if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0) fail_start(name, errno);
  if (chmod(name, 0600) != 0 || listen(fd, 1) != 0) fail_start(name, errno);
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
void write_identity(pid_t machine) {
  char boot[64], text[512];
  if (!read_text("/proc/sys/kernel/random/boot_id", boot, sizeof boot))
    fail_start("boot id", errno);
  boot[strcspn(boot, "\n")] = '\0';
  snprintf(text, sizeof text,
           "{\"hostBootId\":\"%s\",\"machine\":{\"pid\":%d,\"startTime\":\"%s/%llu\"},"
           "\"keeper\":{\"pid\":%d,\"startTime\":\"%s/%llu\"}}\n",
           boot, (int)machine, boot, start_time(machine), (int)getpid(), boot,
           start_time(getpid()));
  if (write_file("machine.json", text) != 0) fail_start("machine.json", errno);
}

unsigned long long oom_kills(const char *path) {
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

void record_end(pid_t machine, const char *oom_counter, unsigned long long kills_before) {
  int status;
  while (waitpid(machine, &status, 0) < 0)
    if (errno != EINTR) return;
  long long ended_at_ms = unix_time_ms();
  unsigned long long kills = oom_kills(oom_counter);
  write_end(status, kills > kills_before ? kills - kills_before : 0, ended_at_ms);
}

int join_groups(const char *const *files) {
  for (; *files != NULL; files++) {
    int fd = open(*files, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t written = write(fd, "0", 1);
    close(fd);
    if (written != 1) return -1;
  }
  return 0;
}
