/* The settings that distinguish this guest from others started from the same memory image. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "network.h"
#include "wire.h"

struct settings {
  uint64_t clock_us;
  const uint8_t *entropy;
  size_t entropy_length;
  char hostname[LIMIT_HOSTNAME_MAX + 1];
  const uint8_t *machine_id, *boot_id;
  struct network_settings network;
  uint32_t resolver;    /* In network byte order; 0 when there is none. */
  char root_device[64]; /* Empty for none. */
  char root_type[16];
  char directory[LIMIT_DIRECTORY_MAX + 1];
  char user[LIMIT_USER_MAX + 1];
  const char *environment;
  size_t environment_length;
};

/* In a container, and in tests: leaves clock and random numbers alone, which are the host's. */
void keep_kernel(void);
/* Reads CLOCK_REALTIME or CLOCK_MONOTONIC, in microseconds. */
uint64_t time_by(clockid_t clock);
/* Sets the time of day by the one at which CLOCK_MONOTONIC read zero. 0, or an error number. */
int set_clock_by_zero(uint64_t zero_us);
/* True once settings have been applied completely. */
bool is_configured(void);
/* 0, or an error number and the step that failed. May be repeated as a whole. */
int apply_settings(const struct settings *settings, const char **step);
