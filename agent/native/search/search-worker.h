/* A rg or grep process and the files that it searches, in their order. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "search-frames.h"

struct batch {
  char **paths;
  size_t count;
};

struct worker {
  pid_t pid;  /* 0 while it has no batch. */
  int output; /* The read end of the process's stdout. */
  uint64_t begun_at;
  struct batch batch;
  size_t current;   /* The file of the last match. */
  bool seen;        /* There was a match. */
  bool kept;        /* Some of its matches are written already. */
  bool skipping;    /* Over the rest of a line that was too long. */
  struct held held; /* The current file's matches. */
  char *input;      /* Not parsed yet. */
  size_t length;
};

struct tools {
  const char *directory;
  const char *rg_pattern; /* NULL: GNU grep searches. */
  const char *grep_pattern;
  bool ignores_case; /* For GNU grep; the other pattern says so itself. */
  int errors;        /* The write end of the pipe for errors of the processes. */
};

/* The program that searches: "rg" or "grep". */
const char *engine_name(const struct tools *tools);

bool worker_start(struct worker *worker, const struct tools *tools, struct batch batch);
/* Reads and parses what rg has printed; false at end of file. */
bool worker_read(struct worker *worker, struct results *results);
/* Waits for the process, and returns its status as of waitpid(2). */
int worker_end(struct worker *worker, bool killed);
void worker_keep(struct worker *worker, struct results *results);
/* Once the worker has ended: the files from the first that was not searched to its end. */
struct batch worker_rest(const struct worker *worker);
void worker_clear(struct worker *worker);
