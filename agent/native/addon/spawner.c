/*
 * A thread that starts programs. It has descriptors of its own, because a program has copies of its
 * starter's until it is executed: with those of the whole process, a file that was closed meanwhile
 * would stay open for that long, and the unmount of its disk fail. It lives as long as the process
 * (PR_SET_PDEATHSIG goes by threads).
 */
#define _GNU_SOURCE
#include "spawner.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Passed to the thread, with the descriptors, and back. */
struct order {
  const struct spawn *spawn;
  pid_t pid;
  int error;
};

/* The descriptors as the thread received them, on their way. */
union rights {
  struct cmsghdr header;
  char bytes[CMSG_SPACE(SPAWN_DESCRIPTORS_MAX * sizeof(int))];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int office = -1; /* This process's end of the socket to the thread. */

static int place_descriptors(const struct spawn *spawn, const int *received,
                             posix_spawn_file_actions_t *actions) {
  int error = 0;
  for (uint32_t i = 0; error == 0 && i < spawn->descriptor_count; i++)
    error = received[i] == SPAWN_NOTHING
                ? posix_spawn_file_actions_addopen(actions, (int)i, "/dev/null", O_RDWR, 0)
                : posix_spawn_file_actions_adddup2(actions, received[i], (int)i);
  return error;
}

static int start(const struct spawn *spawn, const int *received, pid_t *pid) {
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t actions;
  sigset_t all, none;
  int error = posix_spawn_file_actions_init(&actions);
  if (error != 0) return error;
  sigfillset(&all);
  sigemptyset(&none);
  error = place_descriptors(spawn, received, &actions);
  if (error == 0) error = posix_spawnattr_init(&attributes);
  if (error == 0) {
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
    error = posix_spawn(pid, spawn->path, &actions, &attributes, spawn->args, spawn->environment);
    posix_spawnattr_destroy(&attributes);
  }
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

/* Moves a descriptor out of the way of the places in a program. Closes the given one. */
static int move_up(int fd) {
  int moved = fcntl(fd, F_DUPFD_CLOEXEC, SPAWN_DESCRIPTORS_MAX);
  close(fd);
  return moved;
}

/* Brings the received descriptors to their places. */
static int unpack(const struct spawn *spawn, struct msghdr *message, int *received) {
  const struct cmsghdr *rights = CMSG_FIRSTHDR(message);
  int error = 0, got[SPAWN_DESCRIPTORS_MAX];
  size_t count = rights == NULL ? 0 : (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int), next = 0;
  if (count > 0) memcpy(got, CMSG_DATA(rights), count * sizeof(int));
  for (uint32_t i = 0; i < spawn->descriptor_count; i++) {
    if (spawn->descriptors[i] == SPAWN_NOTHING) continue;
    received[i] = next < count ? move_up(got[next++]) : SPAWN_NOTHING;
    /* The kernel passes on only as many as there is room for. */
    if (received[i] < 0) error = EMFILE;
  }
  return error;
}

static void serve(int socket) {
  for (;;) {
    struct order order;
    union rights rights;
    int received[SPAWN_DESCRIPTORS_MAX];
    for (int i = 0; i < SPAWN_DESCRIPTORS_MAX; i++) received[i] = SPAWN_NOTHING;
    struct iovec part = {.iov_base = &order, .iov_len = sizeof order};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    message.msg_control = rights.bytes;
    message.msg_controllen = sizeof rights.bytes;
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof order) continue;
    order.error = unpack(order.spawn, &message, received);
    if (order.error == 0) order.error = start(order.spawn, received, &order.pid);
    for (int i = 0; i < SPAWN_DESCRIPTORS_MAX; i++)
      if (received[i] >= 0) close(received[i]);
    while (send(socket, &order, sizeof order, 0) < 0 && errno == EINTR) continue;
  }
}

static void *run_thread(void *argument) {
  int given = (int)(intptr_t)argument;
  struct order ready = {.error = unshare(CLONE_FILES) == 0 ? 0 : errno};
  if (ready.error == 0) {
    int socket = fcntl(given, F_DUPFD_CLOEXEC, SPAWN_DESCRIPTORS_MAX);
    if (socket < 0) ready.error = errno;
    if (socket >= 0) {
      close_range(0, (unsigned)socket - 1, 0);
      close_range((unsigned)socket + 1, ~0U, 0);
      if (send(socket, &ready, sizeof ready, 0) == sizeof ready) serve(socket);
    }
  }
  send(given, &ready, sizeof ready, 0);
  return NULL;
}

/* Starts the thread, which disturbs nobody: no signal of the process comes to it. */
static int open_office(void) {
  int ends[2];
  pthread_t thread;
  sigset_t all, before;
  struct order ready = {0};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return errno;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&thread, NULL, run_thread, (void *)(intptr_t)ends[1]);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error == 0) {
    pthread_detach(thread);
    if (recv(ends[0], &ready, sizeof ready, 0) != sizeof ready) ready.error = EIO;
    error = ready.error;
  }
  close(ends[1]); /* The thread has a copy of it. */
  if (error == 0)
    office = ends[0];
  else
    close(ends[0]);
  return error;
}

static int send_order(const struct order *order) {
  union rights rights = {0};
  int sent[SPAWN_DESCRIPTORS_MAX];
  size_t count = 0;
  for (uint32_t i = 0; i < order->spawn->descriptor_count; i++)
    if (order->spawn->descriptors[i] != SPAWN_NOTHING) sent[count++] = order->spawn->descriptors[i];
  struct iovec part = {.iov_base = (void *)order, .iov_len = sizeof *order};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (count > 0) {
    message.msg_control = rights.bytes;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    rights.header.cmsg_level = SOL_SOCKET;
    rights.header.cmsg_type = SCM_RIGHTS;
    rights.header.cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(&rights.header), sent, count * sizeof(int));
  }
  return sendmsg(office, &message, MSG_NOSIGNAL) == sizeof *order ? 0 : errno;
}

int spawn_program(const struct spawn *spawn, pid_t *pid) {
  struct order order = {.spawn = spawn};
  pthread_mutex_lock(&lock);
  int error = office < 0 ? open_office() : 0;
  if (error == 0) error = send_order(&order);
  if (error == 0) {
    ssize_t got;
    do got = recv(office, &order, sizeof order, 0);
    while (got < 0 && errno == EINTR);
    error = got == sizeof order ? order.error : EIO;
  }
  pthread_mutex_unlock(&lock);
  *pid = order.pid;
  return error;
}
