#include "search-pace.h"

/* Old batches fade out of the mean, since the parts of a tree differ. */
void pace_learn(struct pace *pace, size_t files, uint64_t us) {
  pace->files = pace->files / 2 + (double)files;
  pace->us = pace->us / 2 + (double)us;
}

size_t pace_files(const struct pace *pace, double us, size_t unknown) {
  if (pace->files < 1) return unknown;
  double files = us * pace->files / (pace->us + 1);
  return files < 1 ? 1 : files > BATCH_FILES_MAX ? BATCH_FILES_MAX : (size_t)files;
}

size_t pace_last(const struct pace *pace, size_t files, size_t workers, double least_us) {
  size_t share = files / (2 * workers), least = pace_files(pace, least_us, 1);
  return share < least ? least : share;
}
