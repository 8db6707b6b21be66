#define _GNU_SOURCE
#include "ram-process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

/* Bits of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst). */
#define PAGE_PRESENT (UINT64_C(1) << 63)
#define PAGE_SWAPPED (UINT64_C(1) << 62)
#define PAGE_OF_FILE (UINT64_C(1) << 61)

enum { ENTRIES_MAX = 64 * 1024 };

struct area {
  uint64_t start, end, offset;
  bool is_private, is_ours, is_anonymous;
};

static bool parse_area(const char *line, const struct ram *ram, struct area *area) {
  char permissions[5];
  unsigned device_major, device_minor;
  uint64_t inode;
  if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64, &area->start,
             &area->end, permissions, &area->offset, &device_major, &device_minor, &inode) != 7)
    return false;
  area->is_ours = inode == ram->inode && makedev(device_major, device_minor) == ram->device;
  area->is_private = permissions[3] == 'p' && permissions[1] == 'w';
  area->is_anonymous = inode == 0;
  return true;
}

/* Finds the address of the start of the file, on which all its areas must agree. */
static int find_base(struct ram *ram, FILE *maps, char **line, size_t *capacity) {
  bool is_found = false;
  while (getline(line, capacity, maps) > 0) {
    struct area area;
    if (!parse_area(*line, ram, &area) || !area.is_ours) continue;
    uint64_t base = area.start - area.offset;
    if (!area.is_private || (is_found && base != ram->base)) return EINVAL;
    ram->base = base;
    is_found = true;
  }
  if (ferror(maps)) return EIO;
  return is_found ? 0 : ENOENT;
}

/*
 * The kernel may show one mapping as several areas, and holes of the file may be anonymous memory
 * (holes.c), which the kernel may show as one with what comes after it. Together they must be the
 * whole file.
 */
static int check_areas(const struct ram *ram, FILE *maps, char **line, size_t *capacity) {
  uint64_t next = ram->base, end = ram->base + ram->bytes;
  while (getline(line, capacity, maps) > 0) {
    struct area area;
    if (!parse_area(*line, ram, &area)) continue;
    if (area.is_ours && area.end > end) return EINVAL;
    if (area.end <= next || area.start >= end) continue;
    if (area.start > next || !area.is_private || !(area.is_ours || area.is_anonymous))
      return EINVAL;
    next = area.end;
  }
  if (ferror(maps)) return EIO;
  return next >= end ? 0 : EINVAL;
}

static int find_mapping(struct ram *ram, FILE *maps) {
  char *line = NULL;
  size_t capacity = 0;
  int error = find_base(ram, maps, &line, &capacity);
  rewind(maps);
  if (error == 0) error = check_areas(ram, maps, &line, &capacity);
  free(line);
  return error;
}

static int open_maps(struct ram *ram) {
  int fd = openat(ram->process, "maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  FILE *maps = fdopen(fd, "r");
  if (maps == NULL) {
    close(fd);
    return ENOMEM;
  }
  int error = find_mapping(ram, maps);
  fclose(maps);
  return error;
}

int ram_open(struct ram *ram, pid_t pid, dev_t device, ino_t inode, uint64_t bytes) {
  char path[32];
  *ram = (struct ram){.pid = pid, .device = device, .inode = inode, .bytes = bytes};
  if (pid <= 0 || bytes == 0 || bytes % page_bytes() != 0) return EINVAL;
  if (bytes / page_bytes() > UINT32_MAX) return EFBIG;
  snprintf(path, sizeof path, "/proc/%d", pid);
  ram->process = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (ram->process < 0) return errno == ENOENT ? ESRCH : errno;
  int error = open_maps(ram);
  if (error != 0) close(ram->process);
  return error;
}

int ram_close(struct ram *ram) {
  /* The directory stays that of this process; the pid may belong to another one by now. */
  int error = faccessat(ram->process, "stat", F_OK, 0) == 0 ? 0 : ESRCH;
  close(ram->process);
  return error;
}

int changes_open(struct changes *changes, const struct ram *ram) {
  *changes = (struct changes){.ram = ram};
  changes->entries = malloc(ENTRIES_MAX * sizeof *changes->entries);
  if (changes->entries == NULL) return ENOMEM;
  changes->pagemap = openat(ram->process, "pagemap", O_RDONLY | O_CLOEXEC);
  if (changes->pagemap >= 0) return 0;
  int error = errno;
  free(changes->entries);
  return error;
}

void changes_close(struct changes *changes) {
  close(changes->pagemap);
  free(changes->entries);
}

/* Whether the process has written to the page; it may be in memory or swapped out. */
static bool is_changed(uint64_t entry) {
  return (entry & (PAGE_PRESENT | PAGE_SWAPPED)) != 0 && (entry & PAGE_OF_FILE) == 0;
}

static int read_entries(struct changes *changes) {
  uint64_t pages = changes->ram->bytes / page_bytes(), left = pages - changes->next;
  uint64_t first = changes->ram->base / page_bytes() + changes->next;
  changes->entries_first = changes->next;
  changes->entries_count = left < ENTRIES_MAX ? left : ENTRIES_MAX;
  int error = read_all(changes->pagemap, changes->entries,
                       changes->entries_count * sizeof(uint64_t), first * sizeof(uint64_t));
  return error == EBADMSG ? ESRCH : error; /* A process that has ended maps nothing. */
}

int changes_next(struct changes *changes, uint32_t count_max, struct extent *found) {
  uint64_t pages = changes->ram->bytes / page_bytes();
  *found = (struct extent){0};
  for (; changes->next < pages; changes->next++) {
    if (changes->next >= changes->entries_first + changes->entries_count) {
      int error = read_entries(changes);
      if (error != 0) return error;
    }
    if (is_changed(changes->entries[changes->next - changes->entries_first])) {
      if (found->count == 0) found->first = (uint32_t)changes->next;
      if (found->count == count_max) break;
      found->count++;
    } else if (found->count > 0) {
      break;
    }
  }
  return 0;
}

typedef ssize_t (*mover)(pid_t, const struct iovec *, unsigned long, const struct iovec *,
                         unsigned long, unsigned long);

static int move_pages(const struct ram *ram, const struct extent *extents, size_t count,
                      uint8_t *local, mover move) {
  struct iovec remote[IOV_MAX];
  uint64_t size = page_bytes();
  while (count > 0) {
    size_t part = count < IOV_MAX ? count : IOV_MAX, bytes = 0;
    for (size_t i = 0; i < part; i++) {
      remote[i].iov_base = (void *)(uintptr_t)(ram->base + extents[i].first * size);
      remote[i].iov_len = extents[i].count * size;
      bytes += remote[i].iov_len;
    }
    struct iovec here = {.iov_base = local, .iov_len = bytes};
    ssize_t moved = move(ram->pid, &here, 1, remote, part, 0);
    if (moved < 0) return errno;
    if ((size_t)moved != bytes) return EFAULT;
    local += bytes;
    extents += part;
    count -= part;
  }
  return 0;
}

int ram_read(const struct ram *ram, const struct extent *extents, size_t count, uint8_t *into) {
  return move_pages(ram, extents, count, into, process_vm_readv);
}

int ram_write(const struct ram *ram, const struct extent *extents, size_t count, uint8_t *from) {
  return move_pages(ram, extents, count, from, process_vm_writev);
}
