/* Writing the pages of a process that differ from its template to a file. */
#pragma once
#include "ram-process.h"

/*
 * `template` is a descriptor; with -1 every page that was written to is saved. The file `out` must
 * be empty. 0, or an error number.
 */
int save_pages(const struct ram *ram, int template, int out, const uint8_t *key, uint64_t *saved);
