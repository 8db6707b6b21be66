/* One thread, one event at a time: a handler may close what other events would have been for. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct watch {
  int fd; /* -1 when closed. */
  void (*ready)(struct watch *watch);
  bool watched;
};

uint64_t now_ms(void);
int loop_open(void);
/* Begins or goes on watching for EPOLLIN, EPOLLOUT …; the descriptor's owner keeps the watch. */
int watch_for(struct watch *watch, uint32_t events);
/* A hang-up is reported even to who wants no events, so who wants none must not be watched. */
void watch_not(struct watch *watch);
void watch_close(struct watch *watch);
/* Waits for one event, at most until the time, and handles it. */
void loop_turn(uint64_t until_ms);
