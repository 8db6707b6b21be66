#include "search-sieve.h"

#include <stdlib.h>
#include <string.h>

#include "search-frames.h"

enum {
  SIFT_FILES_FIRST = 32,
  SIFT_US = 5000,      /* how long a thread should be busy with its batch, */
  SIFT_US_LAST = 1000, /* and at least */
  PASSED_ON_AT_ONCE = 64,
  KEPT_MAX = BATCH_FILES_MAX, /* The most that the engine ever waits for. */
  /* Sifting is worth it while fewer files than one in so many are kept, after so many. */
  KEPT_SHARE = 4,
  KEPT_FIRST = 256,
};

bool sieve_is_used(const struct sieve *sieve) { return sieve->required.length > 0; }

static void pass_on(struct sieve *sieve, struct queue *files) {
  for (int i = 0; i < PASSED_ON_AT_ONCE && files->count > 0; i++, sieve->seen++)
    queue_push(&sieve->kept, queue_shift(files));
}

static struct sifter *free_sifter(struct sieve *sieve) {
  struct sifter *sifter = sieve->sifters;
  while (sifter->is_busy) sifter++;
  return sifter;
}

bool sieve_take(struct sieve *sieve, struct queue *files, bool are_last, size_t workers,
                bool *started) {
  size_t count = pace_files(&sieve->pace, SIFT_US, SIFT_FILES_FIRST);
  *started = false;
  if (files->count == 0 || sieve->kept.count >= KEPT_MAX) return false;
  if (sieve->found * KEPT_SHARE > sieve->seen + KEPT_FIRST) return pass_on(sieve, files), true;
  if (are_last) {
    size_t last = pace_last(&sieve->pace, files->count, workers, SIFT_US_LAST);
    if (last < count) count = last;
    if (count > files->count) count = files->count;
  }
  if (files->count < count) return false;
  struct batch batch = {allocate(NULL, count * sizeof *batch.paths), count};
  for (size_t i = 0; i < count; i++) batch.paths[i] = queue_shift(files);
  sieve->seen += count;
  *started = sifter_start(free_sifter(sieve), &sieve->required, sieve->results_max, batch);
  if (*started) return true;
  for (size_t i = 0; i < count; i++) queue_push(&sieve->kept, batch.paths[i]);
  free(batch.paths);
  return true;
}

size_t sieve_end(struct sieve *sieve, struct sifter *sifter, struct results *results) {
  struct batch batch = sifter->batch;
  size_t left_out = 0;
  sifter_end(sifter);
  write_held(&sifter->held, results);
  pace_learn(&sieve->pace, batch.count, now_us() - sifter->begun_at);
  for (size_t i = 0; i < batch.count; i++) {
    if (sifter->kept[i]) {
      queue_push(&sieve->kept, batch.paths[i]);
      sieve->found++;
    } else {
      free(batch.paths[i]);
      left_out++;
    }
  }
  free(batch.paths);
  return left_out;
}
