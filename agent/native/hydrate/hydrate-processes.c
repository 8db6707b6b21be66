#define _GNU_SOURCE
#include "hydrate-processes.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hydrate-state.h"

enum { SLOT_BITS = 8, SLOT_MASK = 0xff, NOTED_CHECK_US = 500, TURN_CHECK_MS = 1000 };

/* Readable once every thread of the process has ended, and with them all their system calls. */
static bool has_ended(int pidfd, int wait_ms) {
  struct pollfd ended = {.fd = pidfd, .events = POLLIN};
  return poll(&ended, 1, wait_ms) == 1;
}

/*
 * Waits until the process that works has ended, and takes its place unless another one was faster.
 * The generation makes each turn a number of its own, so that nobody takes a turn that has passed.
 */
static void stand_by(int slot) {
  while (!atomic_load(&state->is_over)) {
    uint64_t turn = atomic_load(&state->turn);
    uint64_t next = ((turn >> SLOT_BITS) + 1) << SLOT_BITS | (uint64_t)slot;
    int worker = atomic_load(&state->processes[turn & SLOT_MASK]);
    if (!has_ended(worker, TURN_CHECK_MS) || atomic_load(&state->is_over)) continue;
    if (atomic_compare_exchange_strong(&state->turn, &turn, next)) return state->work(slot);
  }
}

/*
 * Like fork(2), but with one table of descriptors. The child stays only when it was noted: one that
 * nobody knows of would never be missed.
 */
static void start(int slot) {
  int former = atomic_exchange(&state->processes[slot], NONE), pidfd = NONE;
  if (former != NONE) close(former);
  pid_t parent = getpid();
  long flags = CLONE_FILES | CLONE_PIDFD | SIGCHLD;
  long child = syscall(SYS_clone, flags, NULL, &pidfd, NULL, NULL);
  if (child > 0) atomic_store(&state->processes[slot], pidfd);
  if (child != 0) return;
  while (atomic_load(&state->processes[slot]) == NONE) {
    if (getppid() != parent) _exit(EXIT_FAILURE);
    usleep(NOTED_CHECK_US);
  }
  stand_by(slot);
  _exit(EXIT_SUCCESS);
}

void replace_ended_processes(int self) {
  while (waitpid(-1, NULL, WNOHANG) > 0) continue;
  for (int slot = 0; slot < PROCESSES; slot++) {
    int pidfd = atomic_load(&state->processes[slot]);
    if (slot != self && (pidfd == NONE || has_ended(pidfd, 0))) start(slot);
  }
}

void begin_work(void) {
  for (int slot = 1; slot < PROCESSES; slot++) state->processes[slot] = NONE;
  state->processes[0] = (int)syscall(SYS_pidfd_open, getpid(), 0);
  state->work(0);
}
