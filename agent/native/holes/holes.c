/*
 * Loaded into QEMU before its other libraries (LD_PRELOAD). When QEMU maps the RAM of a template
 * privately, the large holes of the file become anonymous memory.
 *
 * In a private mapping of a memory file, a write to a hole costs two pages: the kernel first fills
 * the hole in the file, for every mapping, and then makes the private copy. A guest that uses all
 * of its RAM would cost twice as much, and half of that would stay in the file for good. The guest
 * sees no difference: both are zero.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * The descriptor of the RAM (qemu-arguments.ts), and the smallest hole worth a mapping of its own.
 */
enum { RAM_FD = 10, HOLE_BYTES_MIN = 256 * 1024 };

typedef void *(*map_function)(void *, size_t, int, int, int, off_t);

static bool is_ram(int fd) {
  struct stat ram, file;
  return fstat(RAM_FD, &ram) == 0 && fstat(fd, &file) == 0 && ram.st_ino == file.st_ino &&
         ram.st_dev == file.st_dev;
}

static bool replace(char *start, size_t length, int protection, map_function map) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
  if (map(start, length, protection, flags, -1, 0) == MAP_FAILED) return false;
  madvise(start, length, MADV_NOHUGEPAGE); /* With huge pages, one byte would cost 2 MiB. */
  return true;
}

/* A hole that cannot be replaced only costs memory. */
static void replace_holes(char *mapped, size_t length, int protection, int fd, map_function map) {
  off_t end = (off_t)length;
  for (off_t hole = lseek(fd, 0, SEEK_HOLE); hole >= 0 && hole < end;) {
    off_t data = lseek(fd, hole, SEEK_DATA);
    if (data < 0 && errno != ENXIO) return;
    if (data < 0 || data > end) data = end;
    size_t bytes = (size_t)(data - hole);
    if (bytes >= HOLE_BYTES_MIN && !replace(mapped + hole, bytes, protection, map)) return;
    hole = data == end ? end : lseek(fd, data, SEEK_HOLE);
  }
}

static void *map_with(const char *name, void *at, size_t length, int protection, int flags, int fd,
                      off_t offset) {
  map_function map = (map_function)(uintptr_t)dlsym(RTLD_NEXT, name);
  void *mapped = map(at, length, protection, flags, fd, offset);
  int error = errno;
  if (mapped != MAP_FAILED && fd >= 0 && offset == 0 && (flags & MAP_TYPE) == MAP_PRIVATE &&
      (protection & PROT_WRITE) != 0 && is_ram(fd))
    replace_holes(mapped, length, protection, fd, map);
  errno = error;
  return mapped;
}

void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
  return map_with("mmap", at, length, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
  return map_with("mmap64", at, length, protection, flags, fd, offset);
}
