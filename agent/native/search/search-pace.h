/* How long files take, as estimated from recent batches. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { BATCH_FILES_MAX = 8192 };

struct pace {
  double us, files;
};

void pace_learn(struct pace *pace, size_t files, uint64_t us);
/* How many files take about that long; `unknown` before the first batch. */
size_t pace_files(const struct pace *pace, double us, size_t unknown);
/*
 * How many of the last files to give one of these workers, so that all end together: the share of
 * each is halved, but no batch takes less than that long.
 */
size_t pace_last(const struct pace *pace, size_t files, size_t workers, double least_us);
