#define _GNU_SOURCE
#include "search-frames.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char problem[PROBLEM_BYTES_MAX];
static size_t problem_length;
static bool incomplete;

uint64_t now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* The control group's memory limit kills the process long before this fails. */
void *allocate(void *former, size_t bytes) {
  void *memory = realloc(former, bytes);
  if (memory == NULL) _exit(1);
  return memory;
}

static void write_out(const void *bytes, size_t length) {
  for (size_t done = 0; done < length;) {
    ssize_t count = write(STDOUT_FILENO, (const char *)bytes + done, length - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) _exit(1); /* The agent has closed the pipe. */
    done += (size_t)count;
  }
}

void write_frame(enum frame kind, const void *payload, size_t length) {
  char frame[5 + PROBLEM_BYTES_MAX];
  uint32_t size = (uint32_t)length;
  frame[0] = (char)kind;
  memcpy(frame + 1, &size, sizeof size);
  memcpy(frame + 5, payload, length);
  write_out(frame, 5 + length);
}

void hold(struct held *held, const struct match *match) {
  uint32_t path_length = (uint32_t)strlen(match->path);
  uint32_t payload = (uint32_t)(8 + 4 + 1 + path_length + match->length);
  size_t needed = held->length + 5 + payload;
  if (needed > held->capacity) {
    held->capacity = 2 * needed;
    held->bytes = allocate(held->bytes, held->capacity);
  }
  char *at = held->bytes + held->length;
  *at++ = MATCH;
  memcpy(at, &payload, 4);
  memcpy(at + 4, &match->line, 8);
  memcpy(at + 12, &path_length, 4);
  at[16] = (char)match->truncated;
  memcpy(at + 17, match->path, path_length);
  memcpy(at + 17 + path_length, match->text, match->length);
  held->length = needed;
  held->count++;
}

bool write_held(struct held *held, struct results *results) {
  size_t end = 0;
  for (uint32_t i = 0; i < held->count && results->count < results->max; i++) {
    uint32_t length;
    memcpy(&length, held->bytes + end + 1, sizeof length);
    end += 5 + length;
    results->count++;
  }
  if (end > 0) write_out(held->bytes, end);
  held->length = held->count = 0;
  return end > 0;
}

void note_problem_bytes(const char *bytes, size_t length) {
  size_t room = sizeof problem - problem_length;
  incomplete = true;
  if (length > room) length = room;
  memcpy(problem + problem_length, bytes, length);
  problem_length += length;
}

void note_problem(const char *format, ...) {
  char text[PROBLEM_BYTES_MAX];
  va_list arguments;
  incomplete = true;
  if (problem_length > 0) return;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  note_problem_bytes(text, strlen(text));
  note_problem_bytes("\n", 1); /* Errors that processes write later follow. */
}

bool has_problem(void) { return incomplete; }

void forget_problem(void) {
  incomplete = false;
  problem_length = 0;
}

void write_problem(void) {
  if (problem_length > 0) write_frame(PROBLEM, problem, problem_length);
}
