/* The answer of an operation on files, on its way to the host. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* The answer is collected and written when there is much of it, or at `flush_answer`. */
void answer_number(uint64_t value, size_t bytes);
void answer_bytes(const void *bytes, size_t length);
void answer_stat(const struct stat *found);
/* The length and text of where a link leads; empty for anything else. */
void answer_target(int directory, const char *name, const struct stat *found);
/* Ends the process when nobody reads any more. */
void flush_answer(void);
/* Writes bytes at once: nothing may be collected. */
void write_answer(const uint8_t *bytes, size_t length);
_Noreturn void finish(void);
_Noreturn void finish_with(int result);
