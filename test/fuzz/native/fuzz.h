/*
 * Shared parts of all targets. A target is the project's own sources (the subject), of which each
 * system call `x` is replaced by `fake_x` (see the Makefile), and a file that feeds them an input.
 *
 * An input is read from both ends: content from the front, and from the back what the kernel
 * answers, so that the two do not shift each other. When it is used up, content is zeros and calls
 * succeed.
 */
#pragma once
#include <sanitizer/asan_interface.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                                       \
    }                                                                                \
  } while (0)

/* For bytes that the kernel would read. */
#define CHECK_READABLE(bytes, length) \
  CHECK(__asan_region_is_poisoned((void *)(uintptr_t)(bytes), length) == NULL)

/* A fake of a system call that a target may replace by its own. */
#define FAKE __attribute__((weak))

/* Starts an input: the subject's variables are what they were when the process began. */
void begin_input(const uint8_t *bytes, size_t length);
/* Frees what the subject did not free: programs leave that to their end. */
void end_input(void);
/* The same, where every allocation must have been freed. */
void end_input_without_leaks(void);

bool input_is_empty(void);
uint8_t take_u8(void);
uint16_t take_u16(void);
uint32_t take_u32(void);
uint64_t take_u64(void);
/* A number from 0 to `max`. */
uint32_t take_up_to(uint32_t max);
/* Up to `length` bytes; the rest of `into` becomes zeros. Returns how many there were. */
size_t take_into(void *into, size_t length);
/* Everything that is left. */
const uint8_t *take_rest(size_t *length);

/* From the back: does this call fail? With failures switched off, never. Sets errno. */
bool call_fails(void);
uint8_t take_answer(void);
/* Calls fail only after this. */
void allow_failures(bool allowed);

/* Runs the subject's `main` until it returns, exits, or becomes another program. */
int run_subject(int argc, char **argv);
/* Ends the subject at once, wherever it is. */
_Noreturn void stop_subject(int status);
