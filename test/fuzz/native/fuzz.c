/* Inputs, the subject's memory, and its end. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);

static const uint8_t *front, *back;
static bool failures_allowed;

bool input_is_empty(void) { return front == back; }

uint8_t take_u8(void) { return front < back ? *front++ : 0; }

uint16_t take_u16(void) { return (uint16_t)(take_u8() | take_u8() << 8); }

uint32_t take_u32(void) { return take_u16() | (uint32_t)take_u16() << 16; }

uint64_t take_u64(void) { return take_u32() | (uint64_t)take_u32() << 32; }

uint32_t take_up_to(uint32_t max) {
  uint32_t value = max < 0x100 ? take_u8() : max < 0x10000 ? take_u16() : take_u32();
  return max == UINT32_MAX ? value : value % (max + 1);
}

size_t take_into(void *into, size_t length) {
  size_t left = (size_t)(back - front), count = length < left ? length : left;
  if (count > 0) memcpy(into, front, count);
  if (length > count) memset((uint8_t *)into + count, 0, length - count);
  front += count;
  return count;
}

const uint8_t *take_rest(size_t *length) {
  const uint8_t *rest = front;
  *length = (size_t)(back - front);
  front = back;
  return rest;
}

uint8_t take_answer(void) { return front < back ? *--back : 0; }

void allow_failures(bool allowed) { failures_allowed = allowed; }

bool call_fails(void) {
  static const int errors[] = {EIO, ENOENT, EAGAIN, EINTR, ENOMEM, EACCES, EBUSY, ENOSPC};
  if (!failures_allowed) return false;
  uint8_t answer = take_answer();
  if (answer < 0xf0) return false;
  errno = errors[answer % 8];
  return true;
}

/* The subject's allocations, so that inputs do not add up. Some subjects have threads. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void **blocks;
static size_t block_count, block_room;

static void *note(void *block) {
  if (block == NULL) return NULL;
  pthread_mutex_lock(&mutex);
  if (block_count == block_room) {
    block_room = 2 * block_room + 64;
    blocks = realloc(blocks, block_room * sizeof *blocks);
  }
  blocks[block_count++] = block;
  pthread_mutex_unlock(&mutex);
  return block;
}

/* An unknown block is freed all the same: the sanitizer then says what is wrong with it. */
static void forget(void *block) {
  pthread_mutex_lock(&mutex);
  size_t index = block_count;
  while (index > 0 && blocks[index - 1] != block) index--;
  if (index > 0) blocks[index - 1] = blocks[--block_count];
  pthread_mutex_unlock(&mutex);
}

void *fake_malloc(size_t size) {
  CHECK(size < (size_t)1 << 30);
  return call_fails() ? NULL : note(malloc(size));
}

void *fake_calloc(size_t count, size_t size) {
  return call_fails() ? NULL : note(calloc(count, size));
}

void *fake_realloc(void *block, size_t size) {
  CHECK(size < (size_t)1 << 30);
  if (call_fails()) return NULL;
  forget(block);
  return note(realloc(block, size));
}

void fake_free(void *block) {
  if (block != NULL) forget(block);
  free(block);
}

char *fake_strdup(const char *text) {
  char *copy = fake_malloc(strlen(text) + 1);
  return copy == NULL ? NULL : strcpy(copy, text);
}

/* The subject's variables: the Makefile gives them sections of their own, whose ends ld names. */
extern uint8_t __start_subject_data[] __attribute__((weak));
extern uint8_t __stop_subject_data[] __attribute__((weak));
extern uint8_t __start_subject_bss[] __attribute__((weak));
extern uint8_t __stop_subject_bss[] __attribute__((weak));

enum { RESET_MAX = 4 << 20 };

static uint8_t *saved_data;

/* By hand and unchecked: between variables lie the sanitizer's forbidden zones. */
__attribute__((no_sanitize("address"), noinline)) static void copy_raw(volatile uint64_t *to,
                                                                       const uint64_t *from,
                                                                       size_t bytes) {
  for (size_t index = 0; index < bytes / 8; index++) to[index] = from == NULL ? 0 : from[index];
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc;
  (void)argv;
  size_t size = (size_t)(__stop_subject_data - __start_subject_data);
  if (size == 0) return 0;
  saved_data = malloc(size);
  copy_raw((uint64_t *)saved_data, (uint64_t *)__start_subject_data, size);
  return 0;
}

static void reset_variables(void) {
  size_t size = (size_t)(__stop_subject_bss - __start_subject_bss);
  if (saved_data != NULL)
    copy_raw((uint64_t *)__start_subject_data, (uint64_t *)saved_data,
             (size_t)(__stop_subject_data - __start_subject_data));
  /* Larger ones are buffers that a subject fills before it reads them. */
  if (size <= RESET_MAX) copy_raw((uint64_t *)__start_subject_bss, NULL, size);
}

void begin_input(const uint8_t *bytes, size_t length) {
  front = bytes;
  back = bytes + length;
  failures_allowed = false;
  reset_variables();
}

void end_input(void) {
  while (block_count > 0) free(blocks[--block_count]);
}

void end_input_without_leaks(void) {
  CHECK(block_count == 0);
  end_input();
}

static jmp_buf subject_end;
static int subject_status;

int subject_main(int argc, char **argv) __attribute__((weak));

int run_subject(int argc, char **argv) {
  if (setjmp(subject_end) == 0) subject_status = subject_main(argc, argv);
  return subject_status;
}

_Noreturn void stop_subject(int status) {
  subject_status = status;
  longjmp(subject_end, 1);
}
