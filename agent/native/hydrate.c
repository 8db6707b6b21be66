/*
 * Makes every open of a placeholder wait until the agent has filled the file. A placeholder is a
 * file with the attribute `trusted.berth.placeholder`; other files of the file system are opened at
 * once. Works in every mount namespace, so for containers as well (fanotify(7)).
 *
 * Usage: hydrate DIRECTORY SOCKET GROUP
 *   Watches the file system mounted at DIRECTORY, listens on SOCKET, and joins the control group
 *   whose cgroup.procs is GROUP. Prints `ready` once every open is watched. Ends when the file
 *   system is unmounted everywhere.
 *
 * The kernel lets every open go on when the last descriptor of the group closes, and a placeholder
 * would then be read as zeros. So three processes have the same table of descriptors (CLONE_FILES):
 * the watcher answers the kernel, the commander takes the agent's words, and the holder only holds
 * the table. Those that are left start the others anew; it takes the death of all three at once to
 * close the group. The descriptors of opens that wait stay in the table meanwhile; a new commander
 * tells the next agent that connects of all of them.
 *
 * Lines to the agent, numbers in decimal:
 *   hello PID DEVICE   first: the process that has the descriptors, and the file system's number
 *   open SERIAL FD     an open of a placeholder waits; perhaps told more than once
 *   write SERIAL COPY  the answer to `write`; COPY is -1 when it failed
 * Lines from the agent:
 *   write SERIAL FD    opens the file once more, for writing, which makes no open wait
 *   close COPY         closes such a descriptor
 *   allow SERIAL FD    lets the open go on; one of a file that is still a placeholder is told again
 *   deny SERIAL FD     has the open fail
 * The number of a descriptor is soon that of another open, so the agent's words count only for the
 * open that has this serial.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "disk-failure.h"

#ifndef FAN_CLASS_PRE_CONTENT
#define FAN_CLASS_PRE_CONTENT 0x00000008
#endif
/* Linux 6.13: an open that is denied fails with an error of our choice instead of EPERM. */
#define DENY_WITH(error) (FAN_DENY | (uint32_t)(error) << 24)

#define PLACEHOLDER "trusted.berth.placeholder"

enum {
  CHECK_MS = 200,
  LINE_BYTES = 64,
  EVENT_BYTES = 4096,
  NONE = -1,
  PATIENCE = 2,
  DESCRIPTORS_MAX = 1 << 16,
};

/* What all processes know. Descriptors are the same in all of them. */
struct state {
  char root[PATH_MAX];
  dev_t device;
  int group, listener;
  _Atomic pid_t watcher, commander, holder;
  _Atomic int connection;
  _Atomic uint32_t last_serial;
  _Atomic uint32_t serials[DESCRIPTORS_MAX]; /* Of the open that waits with this descriptor. */
};

static struct state *state;

static void watch(void);
static void command(void);
static void hold(void);

/* Like fork(2), but with one table of descriptors. Notes the child before it has begun to run. */
static pid_t split(_Atomic pid_t *role, void (*body)(void)) {
  pid_t pid = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
  if (pid > 0) atomic_store(role, pid);
  if (pid != 0) return pid;
  atomic_store(role, getpid());
  body();
  _exit(0);
}

static bool is_placeholder(int fd) { return fgetxattr(fd, PLACEHOLDER, NULL, 0) >= 0; }

static void answer(int fd, uint32_t response) {
  struct fanotify_response reply = {.fd = fd, .response = response};
  if (write(state->group, &reply, sizeof reply) < 0 && errno == EINVAL && response != FAN_ALLOW) {
    reply.response = FAN_DENY;
    (void)!write(state->group, &reply, sizeof reply);
  }
  close(fd);
}

/* A connection that takes no more is of no use: the agent comes again and is told all of it. */
static void tell(const char *line) {
  int connection = atomic_load(&state->connection);
  if (connection == NONE) return;
  size_t length = strlen(line);
  ssize_t sent = send(connection, line, length, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent != (ssize_t)length) shutdown(connection, SHUT_RDWR);
}

static uint32_t serial_of(int fd) {
  uint32_t known = 0, fresh = atomic_fetch_add(&state->last_serial, 1) + 1;
  return atomic_compare_exchange_strong(&state->serials[fd], &known, fresh) ? fresh : known;
}

/* Of several processes that want to answer an open, one may: its descriptor is closed once. */
static void answer_once(int fd, uint32_t serial, uint32_t response) {
  if (atomic_compare_exchange_strong(&state->serials[fd], &serial, 0)) answer(fd, response);
}

static void tell_open(int fd) {
  char line[LINE_BYTES];
  snprintf(line, sizeof line, "open %u %d\n", serial_of(fd), fd);
  tell(line);
}

/* Whether the descriptor is of an open that waits: not a copy that was opened for writing. */
static bool is_waiting(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0 || status.st_dev != state->device || !S_ISREG(status.st_mode))
    return false;
  int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && (flags & O_PATH) == 0 && (flags & O_ACCMODE) == O_RDONLY;
}

/* Calls for every descriptor of the table, which may change meanwhile. */
static void each_descriptor(void (*body)(int fd)) {
  DIR *directory = opendir("/proc/self/fd");
  if (directory == NULL) return;
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    char *end;
    long fd = strtol(entry->d_name, &end, 10);
    if (end != entry->d_name && *end == '\0' && fd != dirfd(directory)) body((int)fd);
  }
  closedir(directory);
}

static void settle(int fd) {
  if (!is_waiting(fd)) return;
  if (is_placeholder(fd))
    tell_open(fd);
  else
    answer_once(fd, serial_of(fd), FAN_ALLOW);
}

static void tell_if_waiting(int fd) {
  if (is_waiting(fd) && is_placeholder(fd)) tell_open(fd);
}

static void close_copy(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0 || status.st_dev != state->device) return;
  if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY) close(fd);
}

static int process_fd(pid_t pid) { return (int)syscall(SYS_pidfd_open, pid, 0); }

static bool is_alive(pid_t pid) {
  struct pollfd ended = {.fd = process_fd(pid), .events = POLLIN};
  if (ended.fd < 0) return false;
  bool has_ended = poll(&ended, 1, 0) == 1;
  close(ended.fd);
  return !has_ended;
}

/* Returns when it is gone. Whoever starts a process anew has noted a negative number meanwhile. */
static void end_process(pid_t pid) {
  struct pollfd ended = {.fd = pid > 0 ? process_fd(pid) : NONE, .events = POLLIN};
  if (ended.fd < 0) return;
  kill(pid, SIGKILL);
  poll(&ended, 1, -1);
  close(ended.fd);
}

/* Starts a process anew if it has ended. Of several that try, one does. */
static void restart(_Atomic pid_t *role, void (*body)(void)) {
  pid_t former = atomic_load(role);
  if (!is_alive(former) && atomic_compare_exchange_strong(role, &former, -getpid()))
    split(role, body);
}

static void reap(void) {
  while (waitpid(-1, NULL, WNOHANG) > 0) continue;
}

/* The mark goes with the last mount of the file system, also a lazily unmounted one. */
static bool is_mounted(void) {
  char path[64], line[256];
  bool is_marked = false;
  snprintf(path, sizeof path, "/proc/self/fdinfo/%d", state->group);
  FILE *file = fopen(path, "re");
  if (file == NULL) return true;
  while (!is_marked && fgets(line, sizeof line, file) != NULL)
    is_marked = strncmp(line, "fanotify sdev:", 14) == 0;
  fclose(file);
  return is_marked;
}

static void read_events(void) {
  static _Alignas(struct fanotify_event_metadata) char buffer[EVENT_BYTES];
  ssize_t length = read(state->group, buffer, sizeof buffer);
  if (length <= 0) return;
  struct fanotify_event_metadata *event = (void *)buffer;
  for (; FAN_EVENT_OK(event, length); event = FAN_EVENT_NEXT(event, length)) {
    if (event->fd < 0) continue;
    if (event->pid == atomic_load(&state->commander) || !is_placeholder(event->fd))
      answer(event->fd, FAN_ALLOW);
    else
      tell_open(event->fd);
  }
}

/* Answers the kernel. Beside it there is no other watcher, so it may answer what one left. */
static void watch(void) {
  each_descriptor(settle);
  int other = process_fd(atomic_load(&state->commander));
  for (;;) {
    struct pollfd waits[] = {{.fd = state->group, .events = POLLIN},
                             {.fd = other, .events = POLLIN}};
    if (poll(waits, 2, -1) < 0) continue;
    if ((waits[1].revents & POLLIN) != 0) {
      close(other);
      if (!is_mounted()) _exit(0);
      restart(&state->commander, command);
      other = process_fd(atomic_load(&state->commander));
    }
    if ((waits[0].revents & POLLIN) != 0) read_events();
    reap();
  }
}

/*
 * Opens the file once more, by the mount of the host: that through which somebody opens it may be
 * read-only. The open is this process's, so the watcher lets it through.
 */
static int open_to_write(int fd) {
  union {
    struct file_handle head;
    char bytes[sizeof(struct file_handle) + MAX_HANDLE_SZ];
  } handle = {.head.handle_bytes = MAX_HANDLE_SZ};
  int mount_id;
  if (name_to_handle_at(fd, "", &handle.head, &mount_id, AT_EMPTY_PATH) != 0) return NONE;
  int root = open(state->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) return NONE;
  int copy = open_by_handle_at(root, &handle.head, O_WRONLY | O_NOATIME | O_CLOEXEC);
  close(root);
  return copy;
}

static void open_copy(int fd, uint32_t serial, bool is_meant) {
  char line[LINE_BYTES];
  snprintf(line, sizeof line, "write %u %d\n", serial, is_meant ? open_to_write(fd) : NONE);
  tell(line);
}

static void obey(const char *line) {
  char word[16];
  int fd;
  uint32_t serial;
  if (sscanf(line, "close %d", &fd) == 1 && fd >= 0) return close_copy(fd);
  if (sscanf(line, "%15s %u %d", word, &serial, &fd) != 3) return;
  if (fd < 0 || fd >= DESCRIPTORS_MAX) return;
  bool is_meant = serial != 0 && atomic_load(&state->serials[fd]) == serial && is_waiting(fd);
  if (strcmp(word, "write") == 0) open_copy(fd, serial, is_meant);
  if (!is_meant) return;
  if (strcmp(word, "allow") == 0 && is_placeholder(fd)) return tell_open(fd);
  if (strcmp(word, "allow") == 0) answer_once(fd, serial, FAN_ALLOW);
  if (strcmp(word, "deny") == 0) answer_once(fd, serial, DENY_WITH(EIO));
}

/* @returns false when the connection has ended */
static bool obey_lines(int connection, char *buffer, size_t size, size_t *length) {
  ssize_t got = recv(connection, buffer + *length, size - 1 - *length, MSG_DONTWAIT);
  if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
  *length += (size_t)got;
  buffer[*length] = '\0';
  char *from = buffer;
  for (char *end; (end = strchr(from, '\n')) != NULL; from = end + 1) {
    *end = '\0';
    obey(from);
  }
  *length -= (size_t)(from - buffer);
  memmove(buffer, from, *length);
  return *length < size - 1;
}

static void disconnect(void) {
  int connection = atomic_exchange(&state->connection, NONE);
  if (connection != NONE) close(connection);
  each_descriptor(close_copy);
}

static void greet(void) {
  char line[LINE_BYTES];
  struct ucred peer;
  socklen_t size = sizeof peer;
  int connection = accept4(state->listener, NULL, NULL, SOCK_CLOEXEC);
  if (connection < 0) return;
  disconnect(); /* Its agent is gone, or will come again. */
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != 0) {
    close(connection);
    return;
  }
  atomic_store(&state->connection, connection);
  unsigned long long device = makedev(major(state->device), minor(state->device));
  snprintf(line, sizeof line, "hello %d %llu\n", (int)getpid(), device);
  tell(line);
  each_descriptor(tell_if_waiting);
}

/*
 * Takes the agent's words. A new commander has the watcher start anew, because only a new watcher
 * can tell what the former commander left half done.
 */
static void command(void) {
  static char buffer[1024];
  size_t length = 0;
  bool is_first = atomic_load(&state->watcher) == 0;
  if (!is_first) {
    disconnect();
    end_process(atomic_load(&state->watcher));
  }
  restart(&state->holder, hold);
  restart(&state->watcher, watch);
  int other = process_fd(atomic_load(&state->watcher));
  for (;;) {
    struct pollfd waits[] = {{.fd = state->listener, .events = POLLIN},
                             {.fd = other, .events = POLLIN},
                             {.fd = atomic_load(&state->connection), .events = POLLIN}};
    poll(waits, 3, CHECK_MS);
    if (!is_mounted()) break;
    restart(&state->holder, hold);
    reap();
    if ((waits[1].revents & POLLIN) != 0) {
      close(other);
      restart(&state->watcher, watch);
      other = process_fd(atomic_load(&state->watcher));
    }
    if (waits[2].revents != 0 && waits[2].fd >= 0 &&
        !obey_lines(waits[2].fd, buffer, sizeof buffer, &length)) {
      disconnect();
      length = 0;
    }
    if ((waits[0].revents & POLLIN) != 0) {
      greet();
      length = 0;
    }
  }
  end_process(atomic_load(&state->watcher));
}

static void look_after(_Atomic pid_t *role, void (*body)(void), int *misses) {
  *misses = is_alive(atomic_load(role)) ? 0 : *misses + 1;
  if (*misses < PATIENCE) return;
  restart(role, body);
  *misses = 0;
}

/*
 * The watcher and the commander start each other at once. This is for when both have ended, or one
 * has while the other waits for it.
 */
static void hold(void) {
  int watcher = 0, commander = 0;
  for (;;) {
    poll(NULL, 0, CHECK_MS);
    reap();
    if (!is_mounted()) return;
    look_after(&state->watcher, watch, &watcher);
    look_after(&state->commander, command, &commander);
  }
}

static void listen_on(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) fail(FAILED, path, ENAMETOOLONG);
  snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  state->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  unlink(path);
  if (state->listener < 0 || bind(state->listener, (void *)&address, sizeof address) != 0 ||
      chmod(path, 0600) != 0 || listen(state->listener, 4) != 0)
    fail(FAILED, path, errno);
}

static void join_group(const char *file) {
  int fd = open(file, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, "0", 1) != 1) fail(FAILED, file, errno);
  close(fd);
}

int main(int argc, char **argv) {
  struct stat status;
  struct rlimit files;
  if (argc != 4) fail(FAILED, "hydrate", EINVAL);
  join_group(argv[3]);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  signal(SIGINT, SIG_IGN);
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max < DESCRIPTORS_MAX ? files.rlim_max : DESCRIPTORS_MAX;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (state == MAP_FAILED) fail(FAILED, "mmap", errno);
  state->connection = NONE;
  if (strlen(argv[1]) >= sizeof state->root) fail(FAILED, argv[1], ENAMETOOLONG);
  snprintf(state->root, sizeof state->root, "%s", argv[1]);
  if (stat(argv[1], &status) != 0) fail(FAILED, argv[1], errno);
  state->device = status.st_dev;
  unsigned flags = FAN_CLASS_PRE_CONTENT | FAN_CLOEXEC | FAN_UNLIMITED_QUEUE | FAN_NONBLOCK;
  state->group = fanotify_init(flags, O_RDONLY | O_LARGEFILE | O_CLOEXEC | O_NOATIME);
  if (state->group < 0) fail(FAILED, "fanotify_init", errno);
  listen_on(argv[2]);
  if (fanotify_mark(state->group, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_OPEN_PERM, AT_FDCWD,
                    argv[1]) != 0)
    fail(FAILED, "fanotify_mark", errno);
  /* Nobody answers until both run, but nobody else uses the file system yet. */
  printf("ready\n");
  fflush(stdout);
  freopen("/dev/null", "r+", stdout);
  atomic_store(&state->commander, getpid());
  command();
  return 0;
}
