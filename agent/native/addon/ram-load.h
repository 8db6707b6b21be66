/* Copying the pages of a file into a process that has not run yet. */
#pragma once
#include "ram-process.h"

/* The whole file is checked before anything is written. 0, or an error number as of pages_open. */
int load_pages(const struct ram *ram, int in, const uint8_t *key, uint64_t *loaded);
