/* The parts of the search program; what it does and what it writes is described in search.c. */
#ifndef BERTH_SEARCH_H
#define BERTH_SEARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
  PATH_BYTES_MAX = 4096, /* Linux opens no longer path (PATH_MAX, with its NUL). */
  TEXT_BYTES_MAX = 64 * 1024,
  PROBLEM_BYTES_MAX = 1024,
};

/* Frames, each a u8 kind and a u32 length before its payload. */
enum frame { MATCH = 1, STATISTICS = 2, PROBLEM = 3, END = 4 };
enum reason { COMPLETED, INCOMPLETE, MAX_RESULTS, DEADLINE, LIST_FAILED };

/* search-frames.c */
uint64_t now_us(void);
void *allocate(void *former, size_t bytes);
void write_out(const void *bytes, size_t length);
void write_frame(enum frame kind, const void *payload, size_t length);
/* What keeps the search from being complete; the first one is told. */
void note_problem(const char *format, ...) __attribute__((format(printf, 1, 2)));
void note_problem_bytes(const char *bytes, size_t length);
bool has_problem(void);
void write_problem(void);

/* search-listing.c: a tree, listed level by level and a piece at a time. */
struct queue {
  char **paths;
  size_t first, count, capacity;
};

struct listing {
  struct queue directories; /* found and not listed yet */
  struct queue files;       /* found and given to no worker yet */
  char *directory;          /* at hand; its descriptor is fd, or -1 when none is */
  int fd;
  bool recursive;
  uint64_t spent_us;
};

void queue_push(struct queue *queue, char *path);
char *queue_shift(struct queue *queue);
bool listing_start(struct listing *listing, bool recursive);
bool listing_done(const struct listing *listing);
void listing_step(struct listing *listing);

/* search-worker.c: one rg process and the files that it searches, in their order. */
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

#endif
