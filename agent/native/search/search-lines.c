#define _GNU_SOURCE
#include "search-lines.h"

#include <string.h>

enum {
  LANES = 16,
  ROUNDS_MAX = 255, /* A count of more rounds would not fit in a byte. */
  FRAMES_BYTES_MAX = 2 * HELD_BYTES_MAX,
};

typedef unsigned char lanes __attribute__((vector_size(LANES)));

/* Line feeds before `end`. Where matches are many, counting lines is most of the work. */
static uint64_t count_lines(const unsigned char *at, const unsigned char *end) {
  uint64_t count = 0;
  lanes feeds;
  memset(&feeds, '\n', sizeof feeds);
  while (end - at >= LANES) {
    lanes counts = {0};
    for (int round = 0; round < ROUNDS_MAX && end - at >= LANES; round++, at += LANES) {
      lanes bytes;
      memcpy(&bytes, at, sizeof bytes);
      counts -= (lanes)(bytes == feeds);
    }
    for (int lane = 0; lane < LANES; lane++) count += counts[lane];
  }
  for (; at < end; at++) count += *at == '\n';
  return count;
}

static bool is_for_engine(const struct whole_file *file) {
  static const char mark[] = "\xef\xbb\xbf";
  size_t mark_length = sizeof mark - 1;
  if (file->length >= mark_length && memcmp(file->bytes, mark, mark_length) == 0) return true;
  return memchr(file->bytes, '\0', file->length) != NULL;
}

bool hold_lines(struct held *held, const struct required *required, const struct whole_file *file,
                uint64_t max) {
  const unsigned char *at = file->bytes, *end = file->bytes + file->length, *found = file->found;
  size_t length_before = held->length;
  uint32_t count_before = held->count;
  struct match match = {.path = file->path, .line = 1};
  if (held->length > HELD_BYTES_MAX || is_for_engine(file)) return false;
  while (found != NULL && held->count - count_before < max) {
    const unsigned char *before = memrchr(at, '\n', (size_t)(found - at));
    const unsigned char *from = before == NULL ? at : before + 1;
    const unsigned char *feed = memchr(found, '\n', (size_t)(end - found));
    const unsigned char *to = feed == NULL ? end : feed;
    match.line += count_lines(at, from);
    match.text = (const char *)from;
    match.length = (size_t)(to - from);
    hold(held, &match);
    if (held->length > FRAMES_BYTES_MAX) {
      held->length = length_before;
      held->count = count_before;
      return false;
    }
    if (feed == NULL) break;
    match.line++;
    at = feed + 1;
    found = required_find(required, at, (size_t)(end - at));
  }
  return true;
}
