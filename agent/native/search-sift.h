/* Threads that leave out files without a text that every match has: no process need be fed them. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "search-worker.h"

enum { REQUIRED_BYTES_MAX = 256 };

/* A text, and the places of its two rarest bytes. */
struct required {
  const unsigned char *text;
  size_t length; /* 0: there is none. */
  size_t first, second;
};

/* A thread that reads a batch of files. */
struct sifter {
  bool is_busy;
  pthread_t thread;
  int output; /* At its end when the thread is done. */
  int end;
  uint64_t begun_at;
  const struct required *required;
  struct batch batch;
  bool *kept; /* By file: it has the text, or is for the engine to judge. */
  unsigned char *bytes;
};

void required_set(struct required *required, const char *text);
bool required_is_in(const struct required *required, const unsigned char *bytes, size_t length);
bool sifter_start(struct sifter *sifter, const struct required *required, struct batch batch);
/* Waits for the thread. The batch and what was kept stay until the next start. */
void sifter_end(struct sifter *sifter);
