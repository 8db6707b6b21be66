#define _GNU_SOURCE
#include "power.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel.h"
#include "freeze.h"
#include "loop.h"
#include "process.h"
#include "root.h"

enum { KILL_MS = 2000, LAST_WORDS_MS = 1000 };

enum stage { ON, TERMINATING, KILLING, LAST_WORDS };

static enum stage state;
static bool power_is_kept, is_empty;
static uint64_t until_ms;

void keep_power(void) { power_is_kept = true; }

bool is_shutting_down(void) { return state != ON; }

static void enter(enum stage next, uint64_t wait_ms) {
  state = next;
  until_ms = now_ms() + wait_ms;
}

/* Every process is a descendant. (kill(-1, 0) would count kernel threads as well.) */
static bool has_children(void) {
  siginfo_t info;
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

void begin_shutdown(uint32_t grace_ms, bool is_requested) {
  if (state != ON) return;
  end_freeze();
  struct writer *writer = new_frame(KIND_POWERING_OFF, 0);
  put_number(writer, is_requested, 1);
  send_frame(writer);
  enter(TERMINATING, grace_ms);
  kill(-1, SIGTERM);
  kill(-1, SIGCONT); /* A stopped process could not end. */
  is_empty = !has_children();
}

void shutdown_noticed_empty(void) { is_empty = true; }

static _Noreturn void power_off(void) {
  finish_root();
  if (power_is_kept) exit(0);
  reboot(RB_POWER_OFF);
  for (;;) pause();
}

uint64_t shutdown_tick(void) {
  bool late = now_ms() >= until_ms;
  switch (state) {
    case ON:
      return UINT64_MAX;
    case TERMINATING:
      if (!late && !is_empty) return until_ms;
      kill(-1, SIGKILL);
      enter(KILLING, KILL_MS);
      return 0;
    case KILLING:
      if (!late && !is_empty) return until_ms;
      enter(LAST_WORDS, LAST_WORDS_MS);
      return 0;
    case LAST_WORDS:
      if (late || (!channel_is_blocked() && processes_have_ended())) power_off();
      return until_ms;
  }
  return UINT64_MAX;
}
