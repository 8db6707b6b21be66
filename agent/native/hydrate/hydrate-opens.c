#define _GNU_SOURCE
#include "hydrate-opens.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "hydrate-line.h"
#include "hydrate-state.h"

#ifndef FAN_MARK_EVICTABLE
#define FAN_MARK_EVICTABLE 0x00000200
#endif

/* Linux 6.13: an open that is denied fails with an error of our choice instead of EPERM. */
#define DENY_WITH(error) (FAN_DENY | (uint32_t)(error) << 24)

#define PLACEHOLDER "trusted.berth.placeholder"

enum { EVENT_BYTES = 4096 };

/* An open that waits, by its descriptor, which the kernel knows it by as well. */
struct wait {
  uint32_t serial; /* 0: no open waits with this descriptor. */
  int copy;        /* The file, open for writing; 0: not yet. */
  bool is_asked;   /* For the copy. */
};

struct copy {
  uint32_t serial;
  int fd, copy;
};

static struct wait *waits;
static int waits_end; /* No descriptor from here on has ever waited. */
static int requests[2], copies[2];

/* A file that cannot be examined waits: the agent then finds out why, and has the open fail. */
static bool is_placeholder(int fd) {
  return fgetxattr(fd, PLACEHOLDER, NULL, 0) >= 0 || errno != ENODATA;
}

static void respond(int fd, uint32_t response) {
  struct fanotify_response reply = {.fd = fd, .response = response};
  if (write(state->group, &reply, sizeof reply) >= 0 || errno != EINVAL) return;
  reply.response = FAN_DENY;
  if (response != FAN_ALLOW) (void)!write(state->group, &reply, sizeof reply);
}

/* The copy is closed first: a program cannot be started while its file is open for writing. */
static void answer(int fd, uint32_t response) {
  if (waits[fd].copy > 0) close(waits[fd].copy);
  waits[fd] = (struct wait){0};
  respond(fd, response);
  close(fd);
}

/*
 * Has the kernel let further opens of the file go on by itself for as long as it keeps the inode
 * in memory (Linux 5.19): to ask costs two changes of process. Whoever makes the file a placeholder
 * ends that (give-up.c). An empty file may be about to become one: they are made empty.
 */
static void ask_no_more(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0 || status.st_size == 0) return;
  unsigned flags = FAN_MARK_ADD | FAN_MARK_IGNORED_MASK | FAN_MARK_IGNORED_SURV_MODIFY;
  fanotify_mark(state->group, flags | FAN_MARK_EVICTABLE, FAN_OPEN_PERM, fd, NULL);
}

/* Lets the open of a file that is no placeholder go on. */
static void let_go_on(int fd) {
  ask_no_more(fd);
  answer(fd, FAN_ALLOW);
}

static void wait_for_agent(int fd) {
  waits[fd] = (struct wait){.serial = atomic_fetch_add(&state->last_serial, 1) + 1};
  if (waits_end <= fd) waits_end = fd + 1;
  tell("open %u %d\n", waits[fd].serial, fd);
}

/* The opens of this process are those of its copies. */
void read_opens(void) {
  static _Alignas(struct fanotify_event_metadata) char buffer[EVENT_BYTES];
  ssize_t length = read(state->group, buffer, sizeof buffer);
  if (length <= 0) return;
  struct fanotify_event_metadata *event = (void *)buffer;
  for (; FAN_EVENT_OK(event, length); event = FAN_EVENT_NEXT(event, length)) {
    if (event->fd < 0) continue; /* The kernel has denied it. */
    atomic_store(&state->openers[event->fd], event->pid);
    if (event->pid == getpid())
      answer(event->fd, FAN_ALLOW);
    else if (is_placeholder(event->fd))
      wait_for_agent(event->fd);
    else
      let_go_on(event->fd);
  }
}

void tell_opens(void) {
  for (int fd = 0; fd < waits_end; fd++)
    if (waits[fd].serial != 0) tell("open %u %d\n", waits[fd].serial, fd);
}

/* The number of a descriptor is soon that of another open; the serial is not. */
static bool is_waiting(uint32_t serial, int fd) {
  return fd >= 0 && fd < waits_end && serial != 0 && waits[fd].serial == serial;
}

void allow_open(uint32_t serial, int fd) {
  if (!is_waiting(serial, fd)) return;
  if (is_placeholder(fd))
    tell("open %u %d\n", serial, fd);
  else
    let_go_on(fd);
}

void drop_ended_opens(void) {
  for (int fd = 0; fd < waits_end; fd++) {
    pid_t opener = atomic_load(&state->openers[fd]);
    if (waits[fd].serial == 0 || opener <= 0) continue;
    if (kill(opener, 0) != 0 && errno == ESRCH) answer(fd, DENY_WITH(EIO));
  }
}

void deny_open(uint32_t serial, int fd) {
  if (is_waiting(serial, fd)) answer(fd, DENY_WITH(EIO));
}

/*
 * Opens the file once more, by the mount of the host: that through which somebody opens it may be
 * read-only.
 */
static int open_copy(int fd) {
  union {
    struct file_handle head;
    char bytes[sizeof(struct file_handle) + MAX_HANDLE_SZ];
  } handle = {.head.handle_bytes = MAX_HANDLE_SZ};
  int mount_id;
  if (name_to_handle_at(fd, "", &handle.head, &mount_id, AT_EMPTY_PATH) != 0) return NONE;
  int root = open(state->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) return NONE;
  /* Unmounted there, the path leads to the host, where the handle is another file's. */
  struct stat status;
  int copy = NONE;
  if (fstat(root, &status) == 0 && status.st_dev == state->device)
    copy = open_by_handle_at(root, &handle.head, O_WRONLY | O_NOATIME | O_CLOEXEC);
  close(root);
  return copy;
}

/*
 * A thread of its own, because its opens wait until the other thread lets them go on. It may not
 * allocate: processes are started meanwhile, and would find the allocator locked.
 */
static void *open_copies(void *unused) {
  struct copy asked;
  while (read(requests[0], &asked, sizeof asked) == sizeof asked) {
    asked.copy = open_copy(asked.fd);
    if (write(copies[1], &asked, sizeof asked) != sizeof asked) break;
  }
  return unused;
}

void ask_for_copy(uint32_t serial, int fd) {
  struct copy asked = {.serial = serial, .fd = fd};
  if (!is_waiting(serial, fd)) return tell("write %u -1\n", serial);
  if (waits[fd].copy > 0) return tell("write %u %d\n", serial, waits[fd].copy);
  if (waits[fd].is_asked) return;
  waits[fd].is_asked = write(requests[1], &asked, sizeof asked) == sizeof asked;
  if (!waits[fd].is_asked) tell("write %u -1\n", serial);
}

void read_copies(void) {
  struct copy opened;
  if (read(copies[0], &opened, sizeof opened) != sizeof opened) return;
  if (is_waiting(opened.serial, opened.fd)) {
    waits[opened.fd].is_asked = false;
    if (opened.copy > 0) waits[opened.fd].copy = opened.copy;
    tell("write %u %d\n", opened.serial, opened.copy);
  } else if (opened.copy > 0) {
    close(opened.copy);
  }
}

static bool is_shared(int fd) {
  if (fd <= STDERR_FILENO || fd == state->group || fd == state->listener || fd == state->mounted)
    return true;
  for (int slot = 0; slot < PROCESSES; slot++)
    if (atomic_load(&state->processes[slot]) == fd) return true;
  return false;
}

/* Whether the descriptor is of an open that waits: not a copy that was opened for writing. */
static bool is_event(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0 || status.st_dev != state->device || S_ISDIR(status.st_mode))
    return false;
  int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && (flags & O_PATH) == 0 && (flags & O_ACCMODE) == O_RDONLY;
}

/* Perhaps it was answered already, and its descriptor is left: then nobody hears this answer. */
static void take_over(int fd) {
  if (!is_event(fd))
    close(fd);
  else if (is_placeholder(fd))
    wait_for_agent(fd);
  else
    let_go_on(fd);
}

static void take_over_descriptors(void) {
  DIR *directory = opendir("/proc/self/fd");
  if (directory == NULL) abort();
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    char *end;
    long fd = strtol(entry->d_name, &end, 10);
    if (end == entry->d_name || *end != '\0') continue;
    if (fd != dirfd(directory) && !is_shared((int)fd)) take_over((int)fd);
  }
  closedir(directory);
}

int take_over_opens(void) {
  pthread_t opener;
  size_t size = DESCRIPTORS_MAX * sizeof *waits;
  /* Anew: what a process has from before its turn is its parent's. */
  waits = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  waits_end = 0;
  if (waits == MAP_FAILED) abort();
  take_over_descriptors();
  if (pipe2(requests, O_CLOEXEC) != 0 || pipe2(copies, O_CLOEXEC) != 0) abort();
  fcntl(requests[1], F_SETFL, O_NONBLOCK);
  if (pthread_create(&opener, NULL, open_copies, NULL) != 0) abort();
  return copies[0];
}

void deny_former_opens(void) {
  for (int fd = 0; fd < DESCRIPTORS_MAX; fd++) respond(fd, DENY_WITH(EIO));
}
