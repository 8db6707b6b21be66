/*
 * PID 1 of an exec container: waits for its one command, runs it, and kills everything that the
 * command left behind. Disks may be mounted while it waits, so it enters the working directory only
 * when the command has arrived, and leaves it before it reports the end.
 *
 * Descriptor 3 is a stream socket to the agent:
 *   agent -> init   u32 length, then the command (little-endian; at most COMMAND_MAX bytes); with
 *                   the highest bit of the length set not a command but a program and its
 *                   arguments, each ended by a NUL, which needs no shell
 *   init  -> agent  READY 0, STARTED <pid>, EXITED <status>: two little-endian u32 each
 *   agent closes    at any time, also by dying: everything is killed and init ends.
 *
 * After EXITED the whole process tree is dead. Init then waits for the agent to close, so that the
 * agent can read the control group's counters while it still exists.
 *
 * Descriptors 4 and 5 are the pipes that become the command's stdout and stderr; stdin is empty.
 * They come straight from the agent: output that runc relays could arrive after EXITED.
 *
 * Usage: init <working directory>
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  AGENT_FD = 3,
  OUTPUT_FD = 4,
  ERRORS_FD = 5,
  COMMAND_FD = 9,
  COMMAND_MAX = 1 << 20,
  ARGUMENT_MAX = 120 * 1024, /* Linux refuses a single argument of 128 KiB (execve(2)). */
  PINNED_BYTES_MAX = 64 * 1024,
  READY = 0,
  STARTED = 1,
  EXITED = 2,
  EXIT_CANNOT_RUN = 126,
  EXIT_KILLED = 137,
};

static const uint32_t IS_PROGRAM = 1u << 31;

struct command {
  char text[COMMAND_MAX + 1];
  uint32_t length;
  bool is_program;
};

static void kill_everything(void) {
  /* Every process of this PID namespace but init itself; orphans become our children. */
  kill(-1, SIGKILL);
  while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
    ;
}

static _Noreturn void end(int status) {
  kill_everything();
  _exit(status);
}

static int read_exactly(void *into, size_t length) {
  for (size_t done = 0; done < length;) {
    ssize_t count = read(AGENT_FD, (char *)into + done, length - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return -1;
    done += (size_t)count;
  }
  return 0;
}

static void report(uint32_t kind, uint32_t value) {
  const uint32_t message[2] = {kind, value};
  if (write(AGENT_FD, message, sizeof message) != sizeof message) end(EXIT_KILLED);
}

/*
 * Puts a command that is too long for an argument into a memory file. Bash reads the whole file
 * before it runs the first line, which closes the file.
 */
static char *through_file(const char *command, size_t length) {
  static char source[] = ". /proc/self/fd/9";
  static const char prefix[] = "exec 9<&-; ";
  int fd = memfd_create("command", 0);
  if (fd < 0 || write(fd, prefix, sizeof prefix - 1) < 0) return NULL;
  for (size_t done = 0; done < length;) {
    ssize_t count = write(fd, command + done, length - done);
    if (count <= 0) return NULL;
    done += (size_t)count;
  }
  if (fd != COMMAND_FD && (dup2(fd, COMMAND_FD) < 0 || close(fd) != 0)) return NULL;
  return source;
}

static void run_shell(struct command *command) {
  char *text = command->text;
  if (command->length > ARGUMENT_MAX) text = through_file(command->text, command->length);
  if (text != NULL) execlp("bash", "bash", "-c", "--", text, (char *)NULL);
  fprintf(stderr, "berth: cannot run bash: %s\n", strerror(errno));
}

static void run_program(struct command *command) {
  size_t count = 0;
  const char *end = command->text + command->length;
  if (command->length == 0 || end[-1] != '\0') {
    fprintf(stderr, "berth: cannot run %s: not ended by a NUL\n", command->text);
    return;
  }
  for (const char *at = command->text; at < end; at += strlen(at) + 1) count++;
  char **arguments = calloc(count + 1, sizeof *arguments), *at = command->text;
  for (size_t i = 0; arguments != NULL && i < count; i++, at += strlen(at) + 1) arguments[i] = at;
  if (arguments != NULL) execv(arguments[0], arguments);
  fprintf(stderr, "berth: cannot run %s: %s\n", command->text, strerror(errno));
}

static _Noreturn void run_command(struct command *command, const sigset_t *mask) {
  sigprocmask(SIG_SETMASK, mask, NULL);
  close(AGENT_FD);
  setsid();
  if (command->is_program)
    run_program(command);
  else
    run_shell(command);
  _exit(EXIT_CANNOT_RUN);
}

static int exit_status(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Reaps all ended processes. The command's status if it is among them, else -1. */
static int reap(pid_t command) {
  int status, result = -1;
  pid_t pid;
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
    if (pid == command) result = exit_status(status);
  return result;
}

static int wait_for(pid_t command, int signal_fd) {
  struct pollfd events[2] = {{.fd = AGENT_FD, .events = POLLIN},
                             {.fd = signal_fd, .events = POLLIN}};
  for (;;) {
    if (poll(events, 2, -1) < 0 && errno != EINTR) end(EXIT_KILLED);
    if (events[0].revents != 0) end(EXIT_KILLED);
    if (events[1].revents != 0) {
      struct signalfd_siginfo info;
      if (read(signal_fd, &info, sizeof info) < 0 && errno != EAGAIN) end(EXIT_KILLED);
      int status = reap(command);
      if (status >= 0) return status;
    }
  }
}

static bool read_command(struct command *command) {
  uint32_t length;
  if (read_exactly(&length, sizeof length) != 0) return false;
  command->is_program = (length & IS_PROGRAM) != 0;
  command->length = length & ~IS_PROGRAM;
  return command->length <= COMMAND_MAX && read_exactly(command->text, command->length) == 0;
}

static int take_streams(void) {
  int nothing = open("/dev/null", O_RDONLY);
  if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0) return -1;
  if (dup2(OUTPUT_FD, STDOUT_FILENO) < 0 || dup2(ERRORS_FD, STDERR_FILENO) < 0) return -1;
  return close(nothing) | close(OUTPUT_FD) | close(ERRORS_FD);
}

int main(int argc, char **argv) {
  static struct command command;
  sigset_t children, before;

  /* Nothing in the container may trace init or take its socket. */
  prctl(PR_SET_DUMPABLE, 0);
  fcntl(AGENT_FD, F_SETFD, FD_CLOEXEC);
  /* Locked pages of the image would be shared memory that no container is charged for. */
  struct rlimit pinned = {0};
  if (getrlimit(RLIMIT_MEMLOCK, &pinned) != 0) return EXIT_CANNOT_RUN;
  if (pinned.rlim_max > PINNED_BYTES_MAX) pinned.rlim_max = PINNED_BYTES_MAX;
  pinned.rlim_cur = pinned.rlim_max;
  if (setrlimit(RLIMIT_MEMLOCK, &pinned) != 0) return EXIT_CANNOT_RUN;
  if (take_streams() != 0) return EXIT_CANNOT_RUN;
  report(READY, 0);
  if (!read_command(&command)) return EXIT_KILLED;
  if (argc != 2 || chdir(argv[1]) != 0) {
    fprintf(stderr, "berth: cannot enter the working directory: %s\n", strerror(errno));
    return EXIT_CANNOT_RUN;
  }

  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  sigprocmask(SIG_BLOCK, &children, &before);
  int signal_fd = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
  pid_t pid = signal_fd < 0 ? -1 : fork();
  if (pid < 0) return EXIT_CANNOT_RUN;
  if (pid == 0) run_command(&command, &before);
  report(STARTED, (uint32_t)pid);

  int status = wait_for(pid, signal_fd);
  kill_everything();
  if (chdir("/") != 0) return EXIT_KILLED;
  report(EXITED, (uint32_t)status);
  char closed;
  while (read(AGENT_FD, &closed, 1) < 0 && errno == EINTR)
    ;
  return status;
}
