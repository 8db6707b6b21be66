/* Lines with a text, in a file that is in memory. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "search-frames.h"
#include "search-text.h"

/* A whole file, and where the text is in it first. */
struct whole_file {
  const char *path;
  const unsigned char *bytes, *found;
  size_t length;
};

/*
 * Holds a match for each line with the text, at most `max`. False when it held none, because the
 * engine has to judge: the file is binary or begins with a byte order mark, which rg removes, or
 * there is too much to hold.
 */
bool hold_lines(struct held *held, const struct required *required, const struct whole_file *file,
                uint64_t max);
