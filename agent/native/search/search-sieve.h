/* Files on their way to the engine, most of which sifting threads leave out. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "search-listing.h"
#include "search-pace.h"
#include "search-sift.h"

enum { SIFTERS_MAX = 100 };

struct sieve {
  struct required required;
  uint64_t results_max;
  struct sifter sifters[SIFTERS_MAX];
  struct queue kept;  /* For the engine. */
  size_t seen, found; /* All files, and those of them that were sifted and kept. */
  struct pace pace;
};

/* Whether there is a text by which files can be left out; without it the engine takes all files. */
bool sieve_is_used(const struct sieve *sieve);
/*
 * Takes some of the files for a thread, or passes them on unsifted while nearly all are kept.
 * `started` says whether a thread runs now. False when there are too few files, unless these are
 * the last ones, or enough files are kept.
 */
bool sieve_take(struct sieve *sieve, struct queue *files, bool are_last, size_t workers,
                bool *started);
/* Ends a thread that is done, and writes its matches. Returns how many files need no engine. */
size_t sieve_end(struct sieve *sieve, struct sifter *sifter, struct results *results);
