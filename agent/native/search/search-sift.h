/* Threads that leave out files without a text that every match has: no process need be fed them. */
#pragma once
#include <semaphore.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "search-text.h"
#include "search-worker.h"

/* A thread that reads batches of files. It is started with the first one, and stays. */
struct sifter {
  bool is_busy, has_thread;
  sem_t begun, done;
  int output; /* Has a byte when the thread is done with the batch. */
  int end;
  uint64_t begun_at;
  const struct required *required;
  uint64_t results_max;
  struct batch batch;
  bool *kept;       /* By file: it is for the engine to judge. */
  struct held held; /* Matches of files that are not. */
  unsigned char *bytes;
};

bool sifter_start(struct sifter *sifter, const struct required *required, uint64_t results_max,
                  struct batch batch);
/* Waits for the thread. The batch, what was kept and what is held stay until the next start. */
void sifter_end(struct sifter *sifter);
