/* Files on their way from the listing to the workers: sifted, in batches. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "search-listing.h"
#include "search-pace.h"
#include "search-sieve.h"
#include "search-worker.h"

struct supply {
  struct listing listing;
  struct sieve sieve;
  struct batch *retries; /* Parts of batches whose worker died. */
  size_t retry_count;
  struct pace pace;    /* The engine's. */
  size_t worker_count; /* Processes and threads together. */
  bool text_only;      /* Binary files are left out here, because the engine would not. */
  uint64_t deadline_at;
  uint64_t kept_until; /* Files that were kept by the sieve wait for others until then. */
  uint64_t left_out;   /* Files that need no engine. */
};

struct batch copy_batch(char **paths, size_t count);
/* Files that are to be searched once more. */
void supply_retry(struct supply *supply, char **paths, size_t count);
/* The next files for the engine; empty while there are too few. */
struct batch supply_next(struct supply *supply);
/* Sifts the next files; false when there are too few, or nothing to sift them by. */
bool supply_sift(struct supply *supply, bool *started);
void supply_end_sifter(struct supply *supply, struct sifter *sifter, struct results *results);
/* Whether some of the tree is still to be listed, and there is room for it. */
bool supply_is_listing(const struct supply *supply);
bool supply_is_empty(const struct supply *supply);
