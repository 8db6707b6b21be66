#define _GNU_SOURCE
#include "hydrate-work.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "hydrate-line.h"
#include "hydrate-opens.h"
#include "hydrate-processes.h"
#include "hydrate-state.h"

/* The figure goes with the last mount of the file system, also a lazily unmounted one. */
static bool is_mounted(void) {
  char figure[32];
  return pread(state->mounted, figure, sizeof figure, 0) >= 0 || errno != ENODEV;
}

static void greet(void) {
  if (!accept_line()) return;
  unsigned long long device = makedev(major(state->device), minor(state->device));
  tell("hello %d %llu %d\n", (int)getpid(), device, state->group);
  tell_opens();
}

static void obey(const char *line) {
  char word[16];
  int fd;
  uint32_t serial;
  if (sscanf(line, "%15s %u %d", word, &serial, &fd) != 3) return;
  if (strcmp(word, "write") == 0) ask_for_copy(serial, fd);
  if (strcmp(word, "allow") == 0) allow_open(serial, fd);
  if (strcmp(word, "deny") == 0) deny_open(serial, fd);
}

enum { OPENS, COPIES, LISTENER, LINE, OTHERS, WAITS = OTHERS + PROCESSES };

static bool is_ready(const struct pollfd *waits, int index) {
  return waits[index].fd >= 0 && waits[index].revents != 0;
}

void work(int slot) {
  reset_line();
  int copied = take_over_opens();
  while (is_mounted()) {
    replace_ended_processes(slot);
    struct pollfd waits[WAITS] = {[OPENS] = {.fd = state->group, .events = POLLIN},
                                  [COPIES] = {.fd = copied, .events = POLLIN},
                                  [LISTENER] = {.fd = state->listener, .events = POLLIN},
                                  [LINE] = {.fd = line_descriptor(), .events = POLLIN}};
    for (int other = 0; other < PROCESSES; other++) {
      int pidfd = other == slot ? NONE : atomic_load(&state->processes[other]);
      waits[OTHERS + other] = (struct pollfd){.fd = pidfd, .events = POLLIN};
    }
    if (poll(waits, WAITS, CHECK_MS) == 0) drop_ended_opens();
    if (is_ready(waits, OPENS)) read_opens();
    if (is_ready(waits, COPIES)) read_copies();
    if (is_ready(waits, LINE)) read_lines(obey);
    if (is_ready(waits, LISTENER)) greet();
  }
  atomic_store(&state->is_over, true);
}
