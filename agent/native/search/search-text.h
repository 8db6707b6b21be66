/* Finding a text that every match of a pattern has. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum { REQUIRED_BYTES_MAX = 256 };

/* A text, and the places of its two rarest bytes. */
struct required {
  const unsigned char *text;
  size_t length; /* 0: there is none. */
  size_t first, second;
  bool is_pattern; /* The text is all of the pattern: a line that has it matches. */
};

void required_set(struct required *required, const char *text, bool is_pattern);
/* Where the text is first; NULL: nowhere. */
const unsigned char *required_find(const struct required *required, const unsigned char *bytes,
                                   size_t length);
