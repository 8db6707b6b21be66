#define _GNU_SOURCE
#include "file-answer.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "wire.h"

enum { ANSWER_BYTES = 64 * KIB, TARGET_MAX = PATH_MAX };

static uint8_t answer[ANSWER_BYTES];
static size_t answer_length;

void write_answer(const uint8_t *bytes, size_t length) {
  while (length > 0) {
    ssize_t wrote = write(STDOUT_FILENO, bytes, length);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) _exit(1); /* Nobody reads any more. */
    bytes += wrote;
    length -= (size_t)wrote;
  }
}

void flush_answer(void) {
  write_answer(answer, answer_length);
  answer_length = 0;
}

void answer_bytes(const void *bytes, size_t length) {
  if (answer_length + length > sizeof answer) flush_answer();
  if (length > sizeof answer) return write_answer(bytes, length);
  memcpy(answer + answer_length, bytes, length);
  answer_length += length;
}

void answer_number(uint64_t value, size_t bytes) {
  uint8_t number[8];
  for (size_t index = 0; index < bytes; index++) number[index] = (uint8_t)(value >> (8 * index));
  answer_bytes(number, bytes);
}

void answer_stat(const struct stat *found) {
  answer_number((found->st_mode & S_IFMT) >> 12, 1);
  answer_number(found->st_mode & 07777, 2);
  answer_number(found->st_uid, 4);
  answer_number(found->st_gid, 4);
  answer_number((uint64_t)found->st_size, 8);
  answer_number(found->st_ino, 8);
  answer_number((uint64_t)found->st_mtim.tv_sec, 8);
  answer_number((uint64_t)found->st_mtim.tv_nsec, 4);
  answer_number((uint64_t)found->st_ctim.tv_sec, 8);
  answer_number((uint64_t)found->st_ctim.tv_nsec, 4);
}

void answer_target(int directory, const char *name, const struct stat *found) {
  static char target[TARGET_MAX];
  ssize_t length = S_ISLNK(found->st_mode) ? readlinkat(directory, name, target, TARGET_MAX) : 0;
  if (length < 0) length = 0;
  answer_number((uint64_t)length, 2);
  answer_bytes(target, (size_t)length);
}

_Noreturn void finish(void) {
  flush_answer();
  _exit(0);
}

_Noreturn void finish_with(int result) {
  answer_number((uint64_t)result, 2);
  finish();
}
