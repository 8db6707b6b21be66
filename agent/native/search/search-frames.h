/* Frames that the search program writes (search.c describes them), and its clock and allocator. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  PATH_BYTES_MAX = 4096, /* Linux opens no longer path (PATH_MAX, with its NUL). */
  TEXT_BYTES_MAX = 64 * 1024,
  PROBLEM_BYTES_MAX = 1024,
  HELD_BYTES_MAX = 1 << 20, /* Matches that wait for the end of their file or batch. */
};

/* Frames, each a u8 kind and a u32 length before its payload. */
enum frame { MATCH = 1, STATISTICS = 2, PROBLEM = 3, END = 4 };
enum reason { COMPLETED, INCOMPLETE, MAX_RESULTS, DEADLINE, LIST_FAILED, REFUSED };

struct results {
  uint64_t count, max;
};

/* A line that matches. */
struct match {
  const char *path;
  uint64_t line;
  const char *text;
  size_t length;
  bool truncated;
};

/* Frames of matches that are not written yet. */
struct held {
  char *bytes;
  size_t length, capacity;
  uint32_t count;
};

uint64_t now_us(void);
void *allocate(void *former, size_t bytes);
void hold(struct held *held, const struct match *match);
/* Writes the held matches, as many as are still wanted, and holds none. True if it wrote any. */
bool write_held(struct held *held, struct results *results);
void write_frame(enum frame kind, const void *payload, size_t length);
/* Notes why the search is incomplete; only the first problem is reported. */
void note_problem(const char *format, ...) __attribute__((format(printf, 1, 2)));
void note_problem_bytes(const char *bytes, size_t length);
bool has_problem(void);
void forget_problem(void);
void write_problem(void);
