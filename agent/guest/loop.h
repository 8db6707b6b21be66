/*
 * The event loop runs in one thread and handles one event at a time: a handler may close
 * descriptors that have events pending.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct watch {
  int fd; /* -1 when closed. */
  void (*ready)(struct watch *watch);
  bool watched;
};

/* CLOCK_MONOTONIC: it never jumps when the host sets the time. */
uint64_t now_ms(void);

static inline uint64_t earlier(uint64_t one, uint64_t other) { return one < other ? one : other; }
int loop_open(void);
/* Watches for these events from now on. The structure belongs to the descriptor's owner. */
int watch_for(struct watch *watch, uint32_t events);
/* Stops watching. (With no events requested, epoll would still report a hang-up.) */
void watch_not(struct watch *watch);
void watch_close(struct watch *watch);
/* Waits for one event until this time at most, and handles it. */
void loop_turn(uint64_t until_ms);
