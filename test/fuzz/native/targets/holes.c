/* The library that QEMU maps its RAM through: exactly the large holes become anonymous memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../fuzz.h"

enum { RAM_FD = 10, OTHER_FD = 11, UNIT = 64 * 1024, UNITS_MAX = 200, HOLE_UNITS_MIN = 4 };

void *subject_mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset);

static bool has_data[UNITS_MAX], is_replaced[UNITS_MAX];
static size_t units;
static char *const base = (char *)0x7f0000000000;

/* The system's: what is mapped anonymously lies in the RAM. */
static void *map(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
  (void)protection;
  if (fd >= 0) return offset == 0 ? base : base + UNIT;
  size_t start = (size_t)((char *)at - base), count = length / UNIT;
  CHECK((flags & MAP_FIXED) != 0 && start % UNIT == 0 && length % UNIT == 0);
  if (call_fails()) return MAP_FAILED;
  for (size_t index = start / UNIT; count > 0; index++, count--) {
    CHECK(index < units && !has_data[index]);
    is_replaced[index] = true;
  }
  return at;
}

void *fake_dlsym(void *handle, const char *name) {
  CHECK(handle == (void *)-1L && strcmp(name, "mmap") == 0);
  return (void *)(uintptr_t)map;
}

int fake_fstat(int fd, struct stat *status) {
  memset(status, 0, sizeof *status);
  status->st_ino = fd == OTHER_FD ? 2 : 1;
  return call_fails() ? -1 : 0;
}

off_t fake_lseek(int fd, off_t start, int whence) {
  CHECK(fd != OTHER_FD && start >= 0);
  if (call_fails()) return -1;
  for (size_t index = (size_t)start / UNIT; index < units; index++)
    if (has_data[index] == (whence == SEEK_DATA))
      return (off_t)index * UNIT > start ? (off_t)index * UNIT : start;
  if (whence == SEEK_HOLE) return (off_t)units * UNIT;
  errno = ENXIO;
  return -1;
}

int fake_madvise(void *at, size_t length, int advice) {
  return (void)at, (void)length, (void)advice, 0;
}

static bool is_large_hole(size_t index, size_t end) {
  size_t from = index, to = index;
  while (from > 0 && !has_data[from - 1]) from--;
  while (to < end && !has_data[to]) to++;
  return !has_data[index] && to - from >= HOLE_UNITS_MIN;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  begin_input(bytes, length);
  uint8_t how = take_u8();
  bool is_ours = (how & 7) == 0 || (how & 7) == 1;
  allow_failures(how & 1);
  units = take_up_to(UNITS_MAX);
  size_t mapped = how & 8 ? units / 2 : units;
  memset(is_replaced, 0, sizeof is_replaced);
  for (size_t index = 0, left = 0, is_data = 0; index < units; index++, left--) {
    if (left == 0) left = 1u + take_u8() % 16, is_data = !is_data;
    has_data[index] = is_data;
  }
  void *at = subject_mmap(NULL, mapped * UNIT, how & 2 ? PROT_READ : PROT_READ | PROT_WRITE,
                          how & 4 ? MAP_SHARED : MAP_PRIVATE, how & 16 ? OTHER_FD : RAM_FD,
                          how & 32 ? UNIT : 0);
  CHECK(at == base || at == base + UNIT);
  is_ours = is_ours && !(how & (16 | 32));
  for (size_t index = 0; index < units; index++)
    if ((how & 1) == 0)
      CHECK(is_replaced[index] == (is_ours && index < mapped && is_large_hole(index, mapped)));
    else
      CHECK(!is_replaced[index] || (is_ours && is_large_hole(index, mapped)));
  return 0;
}
