/* What makes this guest different from others that were started from the same memory. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "network.h"
#include "wire.h"

struct settings {
  uint64_t clock_us;
  const uint8_t *entropy;
  size_t entropy_length;
  char hostname[LIMIT_HOSTNAME_MAX + 1];
  const uint8_t *machine_id, *boot_id;
  struct network_settings network;
  uint32_t resolver;    /* In network byte order. */
  char root_device[64]; /* None when empty. */
  char root_type[16];
  char directory[LIMIT_DIRECTORY_MAX + 1];
  const char *environment;
  size_t environment_length;
};

/* In tests the machine's clock is not ours to set. */
void keep_clock(void);
/* True once everything of some settings took effect. */
bool is_configured(void);
/* 0, or an error number; the step that failed is named. May be repeated, whole. */
int apply_settings(const struct settings *settings, const char **step);
