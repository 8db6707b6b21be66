#define _GNU_SOURCE
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "environment.h"
#include "files.h"
#include "user.h"

/* oom_score_adj of a container's processes; the guest agent keeps 0, so that it is killed last. */
#define OOM_SCORE "500"

enum {
  COMMAND_FD = 9,
  FD_ABOVE_ALL = 10, /* In a child, the agent's descriptors lie above those of the command. */
  ARGUMENT_MAX = 120 * KIB, /* Linux refuses a single argument of 128 KiB (execve(2)). */
  EXIT_CANNOT_RUN = 126,
};

static char default_directory[LIMIT_DIRECTORY_MAX + 1] = "/";
static char default_user[LIMIT_USER_MAX + 1];
static int group_fd = -1, hook_group_fd = -1; /* Their lists of processes. */
static struct rlimit files_limit;
static bool processes_are_exposed;

/* An image may name a working directory that it does not contain. What fails is told at a start. */
static void make_directories(const char *path) {
  char copy[LIMIT_DIRECTORY_MAX + 1];
  snprintf(copy, sizeof copy, "%s", path);
  for (char *end = copy; (end = strchr(end + 1, '/')) != NULL; *end = '/') {
    *end = '\0';
    mkdir(copy, 0755);
  }
  mkdir(copy, 0755);
}

int set_process_defaults(const struct process_defaults *defaults) {
  int error = set_default_environment(defaults->environment, defaults->environment_length);
  if (error != 0) return error;
  snprintf(default_directory, sizeof default_directory, "%s", defaults->directory);
  snprintf(default_user, sizeof default_user, "%s", defaults->user);
  if (access(default_directory, F_OK) != 0) make_directories(default_directory);
  return 0;
}

void expose_processes(void) { processes_are_exposed = true; }

void remember_limits(void) { getrlimit(RLIMIT_NOFILE, &files_limit); }

int set_terminal_size(int terminal, uint16_t columns, uint16_t rows) {
  struct winsize size = {.ws_col = columns, .ws_row = rows};
  return ioctl(terminal, TIOCSWINSZ, &size) == 0 ? 0 : errno;
}

static int open_terminal(const struct process_spec *spec, struct spawned *spawned, int *child) {
  int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
  if (terminal < 0) return errno;
  spawned->outputs[0] = terminal;
  spawned->input = fcntl(terminal, F_DUPFD_CLOEXEC, FD_ABOVE_ALL);
  if (spawned->input < 0 || unlockpt(terminal) != 0) return errno;
  int size_error = set_terminal_size(terminal, spec->columns, spec->rows);
  if (size_error != 0) return size_error;
  /* By descriptor: after the change of root, the name may denote another terminal. */
  int peer = ioctl(terminal, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (peer < 0) return errno;
  child[0] = peer;
  child[1] = fcntl(peer, F_DUPFD_CLOEXEC, FD_ABOVE_ALL);
  child[2] = fcntl(peer, F_DUPFD_CLOEXEC, FD_ABOVE_ALL);
  return child[1] < 0 || child[2] < 0 ? errno : 0;
}

/* `ours` is the end of the pipe that the guest agent keeps: 0 to read, 1 to write. */
static int open_pipe(int ours, int *our_fd, int *child_fd) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return errno;
  *our_fd = ends[ours];
  *child_fd = ends[1 - ours];
  return fcntl(*our_fd, F_SETFL, O_NONBLOCK) == 0 ? 0 : errno;
}

static int open_nothing(int *out, int *err) {
  *out = open("/dev/null", O_WRONLY | O_CLOEXEC);
  *err = open("/dev/null", O_WRONLY | O_CLOEXEC);
  return *out < 0 || *err < 0 ? errno : 0;
}

static int open_pipes(const struct process_spec *spec, struct spawned *spawned, int *child) {
  int error = 0;
  if (spec->flags & FLAG_STDIN)
    error = open_pipe(1, &spawned->input, &child[0]);
  else if ((child[0] = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0)
    error = errno;
  if (error == 0 && spec->hook) return open_nothing(&child[1], &child[2]);
  if (error == 0) error = open_pipe(0, &spawned->outputs[0], &child[1]);
  if (error == 0 && spec->operation != NULL) {
    child[2] = open("/dev/null", O_WRONLY | O_CLOEXEC);
    return child[2] < 0 ? errno : 0;
  }
  if (error == 0) error = open_pipe(0, &spawned->outputs[1], &child[2]);
  return error;
}

/*
 * A command too long for an argument is put into a memory file. The shell opens it again by its
 * name, and the first thing that it reads closes our descriptor.
 */
static const char *through_file(const struct process_spec *spec) {
  static const char prefix[] = "exec 9<&-; ";
  int fd = memfd_create("command", 0);
  if (fd < 0 || write(fd, prefix, sizeof prefix - 1) < 0) return NULL;
  for (size_t done = 0; done < spec->command_length;) {
    ssize_t count = write(fd, spec->command + done, spec->command_length - done);
    if (count <= 0) return NULL;
    done += (size_t)count;
  }
  if (fd != COMMAND_FD && (dup2(fd, COMMAND_FD) < 0 || close(fd) != 0)) return NULL;
  return ". /proc/self/fd/9";
}

static void join_group(int group) {
  if (group >= 0 && write(group, "0", 1) < 0)
    errno = 0; /* The process runs outside of the group as well, unfrozen. */
}

static _Noreturn void give_up(int failure, const char *step) {
  struct spawn_failure what = {.error = errno};
  snprintf(what.step, sizeof what.step, "%s", step);
  if (write(failure, &what, sizeof what) != sizeof what) _exit(EXIT_CANNOT_RUN);
  _exit(EXIT_CANNOT_RUN);
}

/* When memory runs out, the kernel ends what was started here before the guest agent. */
static void expose(void) {
  int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  if (write(fd, OOM_SCORE, sizeof OOM_SCORE - 1) < 0)
    errno = 0; /* The kernel then ends them in any order. */
  close(fd);
}

static void restore_defaults(void) {
  sigset_t none;
  sigemptyset(&none);
  signal(SIGPIPE, SIG_DFL);
  setpriority(PRIO_PROCESS, 0, 0);
  if (processes_are_exposed) expose();
  sigprocmask(SIG_SETMASK, &none, NULL);
  if (files_limit.rlim_max != 0) setrlimit(RLIMIT_NOFILE, &files_limit);
}

/* Otherwise another user could not open them again by name, such as /dev/stdout. */
static void give_streams(const struct user *user) {
  struct stat stream;
  for (int fd = 0; fd < 3; fd++)
    if (fstat(fd, &stream) == 0 && (S_ISFIFO(stream.st_mode) || isatty(fd)) &&
        fchown(fd, user->uid, (gid_t)-1) != 0)
      errno = 0;
}

/* Root stays root, with nothing open but its streams: no link of /proc leads to more. */
static _Noreturn void run_operation(const struct process_spec *spec, const int *streams) {
  sigset_t none;
  setsid();
  join_group(group_fd);
  for (int fd = 0; fd < 3; fd++)
    if (dup2(streams[fd], fd) < 0) _exit(EXIT_CANNOT_RUN);
  close_range(3, UINT_MAX, 0); /* The pipe of failures, too: the host is told that it runs. */
  sigemptyset(&none);
  setpriority(PRIO_PROCESS, 0, 0);
  if (processes_are_exposed) expose();
  sigprocmask(SIG_SETMASK, &none, NULL);
  if (chdir("/") != 0) _exit(EXIT_CANNOT_RUN);
  run_file_operation(spec->operation, spec->operation_length, default_user);
}

static _Noreturn void run_child(const struct process_spec *spec, const int *streams, int failure) {
  bool has_terminal = spec->flags & FLAG_TERMINAL;
  setsid();
  join_group(spec->hook ? hook_group_fd : group_fd);
  for (int fd = 0; fd < 3; fd++)
    if (dup2(streams[fd], fd) < 0) give_up(failure, "streams");
  if (has_terminal && ioctl(0, TIOCSCTTY, 0) != 0) give_up(failure, "terminal");
  const char *directory = spec->directory[0] == '\0' ? default_directory : spec->directory;
  if (chdir(directory) != 0) give_up(failure, "directory");
  const char *text = spec->command_length > ARGUMENT_MAX ? through_file(spec) : spec->command;
  if (text == NULL) give_up(failure, "command");
  const char *arguments[] = {"sh", "-c", "--", text, NULL};
  struct user user;
  const char *step;
  errno = find_user(spec->user[0] == '\0' ? default_user : spec->user, &user, &step);
  if (errno != 0) give_up(failure, step);
  char **environment =
      environment_of(user.home, has_terminal, spec->environment, spec->environment_length);
  restore_defaults();
  if (user.uid != 0) give_streams(&user);
  errno = become_user(&user);
  if (errno != 0) give_up(failure, "user");
  execve("/bin/sh", (char **)(uintptr_t)arguments, environment);
  give_up(failure, "shell");
}

static void close_all(int *fds, size_t count) {
  for (size_t index = 0; index < count; index++) {
    if (fds[index] >= 0) close(fds[index]);
    fds[index] = -1;
  }
}

/* Moves a descriptor above those that the command gets. */
static int above_all(int fd) {
  int moved = fcntl(fd, F_DUPFD_CLOEXEC, FD_ABOVE_ALL);
  close(fd);
  return moved;
}

static void open_group(const char *directory, int *group) {
  char path[256];
  snprintf(path, sizeof path, "%s/cgroup.procs", directory);
  if (*group >= 0) close(*group);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  *group = fd < 0 ? -1 : above_all(fd);
}

void set_process_group(const char *directory) { open_group(directory, &group_fd); }

void set_hook_group(const char *directory) { open_group(directory, &hook_group_fd); }

/* Looked at without touching anything that is mounted there: it may never answer. */
static bool is_on_root_disk(const char *path) {
  struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_NO_XDEV};
  int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

/*
 * Whether a shell can be started in our own memory while we stand still, for which nothing must be
 * copied. What it needs lies on the root disk, or we would hang with it, and it stays root, so that
 * nobody else may stop it before its exec.
 */
static bool may_share_memory(const struct process_spec *spec) {
  if (spec->operation != NULL) return false;
  const char *user = spec->user[0] == '\0' ? default_user : spec->user;
  const char *directory = spec->directory[0] == '\0' ? default_directory : spec->directory;
  bool is_root = user[0] == '\0' || strcmp(user, "0") == 0 || strcmp(user, "0:0") == 0;
  return is_root && is_on_root_disk(directory) && is_on_root_disk("/bin/sh") &&
         is_on_root_disk("/etc/passwd");
}

static pid_t start_child(const struct process_spec *spec, const int *child) {
  if (may_share_memory(spec)) {
    pid_t sharing = vfork(); /* NOLINT(clang-analyzer-security.insecureAPI.vfork) */
    if (sharing == 0) run_child(spec, child, child[3]); /* NOLINT(clang-analyzer-unix.Vfork) */
    return sharing;
  }
  pid_t copy = fork();
  if (copy == 0 && spec->operation != NULL) run_operation(spec, child);
  if (copy == 0) run_child(spec, child, child[3]);
  return copy;
}

int spawn(const struct process_spec *spec, struct spawned *spawned) {
  int child[4] = {-1, -1, -1, -1};
  *spawned = (struct spawned){.input = -1, .outputs = {-1, -1}, .failure = -1};
  bool is_terminal = spec->flags & FLAG_TERMINAL;
  int error = is_terminal ? open_terminal(spec, spawned, child) : open_pipes(spec, spawned, child);
  if (error == 0) error = open_pipe(0, &spawned->failure, &child[3]);
  if (error == 0) {
    child[3] = above_all(child[3]);
    spawned->pid = child[3] < 0 ? -1 : start_child(spec, child);
    if (spawned->pid < 0) error = errno;
  }
  close_all(child, 4);
  if (error == 0) return 0;
  close_all(&spawned->input, 1);
  close_all(spawned->outputs, 2);
  close_all(&spawned->failure, 1);
  return error;
}
