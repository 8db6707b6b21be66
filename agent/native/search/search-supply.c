#define _GNU_SOURCE
#include "search-supply.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "search-frames.h"

enum {
  BATCH_FILES_FIRST = 64,
  BATCH_US = 150000,     /* how long a worker should be busy with its batch, */
  BATCH_US_LAST = 20000, /* and at least: to start one takes some milliseconds */
  KEPT_WAIT_US = 100000,
  BATCH_BYTES_MAX =
      1 << 20, /* With the usual stack, Linux accepts 2 MiB of arguments (execve(2)). */
  FILES_AHEAD = 65536,
};

struct batch copy_batch(char **paths, size_t count) {
  struct batch batch = {allocate(NULL, count * sizeof *paths), count};
  memcpy(batch.paths, paths, count * sizeof *paths);
  return batch;
}

void supply_retry(struct supply *supply, char **paths, size_t count) {
  supply->retries = allocate(supply->retries, (supply->retry_count + 1) * sizeof *supply->retries);
  supply->retries[supply->retry_count++] = copy_batch(paths, count);
}

/* The files that the engine is to search. */
static struct queue *waiting_files(struct supply *supply) {
  return sieve_is_used(&supply->sieve) ? &supply->sieve.kept : &supply->listing.files;
}

static bool is_sifting(const struct supply *supply) {
  for (size_t i = 0; i < supply->worker_count; i++)
    if (supply->sieve.sifters[i].is_busy) return true;
  return false;
}

static bool is_all_found(const struct supply *supply) {
  if (!listing_done(&supply->listing)) return false;
  return !sieve_is_used(&supply->sieve) ||
         (supply->listing.files.count == 0 && !is_sifting(supply));
}

static size_t batch_size(struct supply *supply) {
  size_t waiting = waiting_files(supply)->count;
  size_t size = pace_files(&supply->pace, BATCH_US, BATCH_FILES_FIRST);
  bool is_due = sieve_is_used(&supply->sieve) && now_us() >= supply->kept_until;
  if (!is_all_found(supply) && !is_due) return waiting < size ? 0 : size;
  size_t last = pace_last(&supply->pace, waiting, supply->worker_count, BATCH_US_LAST);
  if (last < size) size = last;
  return size < waiting ? size : waiting;
}

/* grep would hold a binary file's longest line in memory: it gets text only. */
static bool is_left_out(const struct supply *supply, const char *path) {
  static char bytes[256 * 1024];
  ssize_t length;
  bool is_binary = false;
  if (!supply->text_only) return false;
  int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return false; /* grep names the reason. */
  while (!is_binary && now_us() < supply->deadline_at &&
         (length = read(fd, bytes, sizeof bytes)) > 0)
    is_binary = memchr(bytes, '\0', (size_t)length) != NULL;
  close(fd);
  return is_binary;
}

struct batch supply_next(struct supply *supply) {
  struct batch batch = {NULL, 0};
  if (supply->retry_count > 0) return supply->retries[--supply->retry_count];
  struct queue *files = waiting_files(supply);
  size_t count = batch_size(supply), bytes = 0;
  if (count == 0) return batch;
  batch.paths = allocate(NULL, count * sizeof *batch.paths);
  while (batch.count < count && bytes < BATCH_BYTES_MAX && files->count > 0 &&
         now_us() < supply->deadline_at) {
    char *path = queue_shift(files);
    if (is_left_out(supply, path)) {
      supply->left_out++;
      free(path);
      continue;
    }
    bytes += strlen(path) + 1 + sizeof path;
    batch.paths[batch.count++] = path;
  }
  if (batch.count == 0) free(batch.paths);
  supply->kept_until = now_us() + KEPT_WAIT_US;
  return batch;
}

bool supply_sift(struct supply *supply, bool *started) {
  bool are_last = listing_done(&supply->listing);
  *started = false;
  return sieve_is_used(&supply->sieve) && sieve_take(&supply->sieve, &supply->listing.files,
                                                     are_last, supply->worker_count, started);
}

void supply_end_sifter(struct supply *supply, struct sifter *sifter, struct results *results) {
  supply->left_out += sieve_end(&supply->sieve, sifter, results);
}

bool supply_is_listing(const struct supply *supply) {
  return !listing_done(&supply->listing) && supply->listing.files.count < FILES_AHEAD;
}

bool supply_is_empty(const struct supply *supply) {
  return !supply_is_listing(supply) && supply->listing.files.count == 0 &&
         supply->sieve.kept.count == 0;
}
