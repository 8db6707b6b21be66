/* One rg process and the files that it searches, in their order. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct batch {
  char **paths;
  size_t count;
};

struct worker {
  pid_t pid;  /* 0 when it has nothing to do */
  int output; /* what rg prints */
  uint64_t begun_at;
  struct batch batch;
  size_t current; /* the file that the last match was in */
  bool seen;      /* it had a match */
  bool kept;      /* some of its matches are written out already */
  bool skipping;  /* the rest of a line that was too long */
  char *held;     /* frames of the current file's matches */
  size_t held_length, held_capacity;
  uint32_t held_count;
  char *input; /* what is not parsed yet */
  size_t length;
};

struct results {
  uint64_t count, max;
};

struct tools {
  const char *directory, *pattern;
  int errors; /* the pipe for what rg complains of */
};

bool worker_start(struct worker *worker, const struct tools *tools, struct batch batch);
/* Takes what rg has printed. False at its end. */
bool worker_read(struct worker *worker, struct results *results);
/* Waits for the process. Returns its status as of waitpid(2). */
int worker_end(struct worker *worker, bool killed);
void worker_keep(struct worker *worker, struct results *results);
/* The files from the first one that was not searched to its end, once the worker has ended. */
struct batch worker_rest(const struct worker *worker);
void worker_clear(struct worker *worker);
