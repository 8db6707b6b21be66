#define _GNU_SOURCE
#include "loop.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static int epoll_fd = -1;

uint64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

int loop_open(void) {
  epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  return epoll_fd < 0 ? -1 : 0;
}

int watch_for(struct watch *watch, uint32_t events) {
  struct epoll_event event = {.events = events, .data.ptr = watch};
  int operation = watch->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  if (epoll_ctl(epoll_fd, operation, watch->fd, &event) != 0) return -1;
  watch->watched = true;
  return 0;
}

void watch_not(struct watch *watch) {
  if (watch->watched) epoll_ctl(epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
  watch->watched = false;
}

void watch_close(struct watch *watch) {
  watch_not(watch);
  if (watch->fd >= 0) close(watch->fd);
  watch->fd = -1;
}

void loop_turn(uint64_t until_ms) {
  uint64_t now = now_ms();
  int timeout = -1;
  if (until_ms <= now)
    timeout = 0;
  else if (until_ms != UINT64_MAX)
    timeout = until_ms - now > INT_MAX ? INT_MAX : (int)(until_ms - now);
  struct epoll_event event;
  if (epoll_wait(epoll_fd, &event, 1, timeout) != 1) return;
  struct watch *watch = event.data.ptr;
  watch->ready(watch);
}
