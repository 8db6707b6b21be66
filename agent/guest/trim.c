#define _GNU_SOURCE
#include "trim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel.h"
#include "loop.h"

enum {
  GROUPS_MAX = 2048,    /* The first 256 GiB of a disk with blocks of 4 KiB. */
  PIECE_MIN = 64 * KIB, /* The cluster of the host's image: it gives back nothing smaller. */
  SUPERBLOCK_AT = 1024,
  MAGIC = 0xef53,
  META_GROUPS = 0x10, /* Incompatible features of ext4: descriptors elsewhere, and longer ones. */
  LONG_DESCRIPTORS = 0x80,
  DESCRIPTOR_BYTES = 32,
  DESCRIPTOR_BYTES_MAX = 64,
};

/* The file system's geometry, as far as trimming needs it. No groups: not to be trimmed. */
struct layout {
  uint32_t groups, blocks_per_group, block_bytes, descriptor_bytes;
  uint64_t descriptors_at;
};

static char disk[64];
/* Free blocks of each group when it was mounted, or last trimmed. */
static uint32_t known[GROUPS_MAX], found[GROUPS_MAX];

static uint32_t number_at(const uint8_t *bytes, size_t length) {
  uint32_t value = 0;
  for (size_t index = 0; index < length; index++) value |= (uint32_t)bytes[index] << (8 * index);
  return value;
}

static struct layout read_layout(int fd) {
  uint8_t super[1024];
  struct layout layout = {0};
  if (pread(fd, super, sizeof super, SUPERBLOCK_AT) != sizeof super) return layout;
  uint32_t features = number_at(super + 96, 4), log_block = number_at(super + 24, 4);
  layout.blocks_per_group = number_at(super + 32, 4);
  if (number_at(super + 56, 2) != MAGIC || (features & META_GROUPS) != 0 || log_block > 6 ||
      layout.blocks_per_group == 0)
    return layout;
  bool is_long = (features & LONG_DESCRIPTORS) != 0;
  uint64_t blocks =
      number_at(super + 4, 4) | (is_long ? (uint64_t)number_at(super + 336, 4) << 32 : 0);
  layout.block_bytes = 1024U << log_block;
  layout.descriptor_bytes = is_long ? number_at(super + 254, 2) : DESCRIPTOR_BYTES;
  layout.descriptors_at = (number_at(super + 20, 4) + 1ULL) * layout.block_bytes;
  if (layout.descriptor_bytes < DESCRIPTOR_BYTES || layout.descriptor_bytes > DESCRIPTOR_BYTES_MAX)
    return layout;
  uint64_t groups = (blocks + layout.blocks_per_group - 1) / layout.blocks_per_group;
  layout.groups = groups < GROUPS_MAX ? (uint32_t)groups : GROUPS_MAX;
  return layout;
}

/*
 * The device's pages are those in which the file system has its descriptors: they are as new as
 * what it knows. The high part of a count is left out, as only changes matter.
 */
static bool read_groups(int fd, const struct layout *layout, uint32_t *free_blocks) {
  static uint8_t descriptors[GROUPS_MAX * DESCRIPTOR_BYTES_MAX];
  size_t length = (size_t)layout->groups * layout->descriptor_bytes;
  if (length == 0) return false;
  if (pread(fd, descriptors, length, (off_t)layout->descriptors_at) != (ssize_t)length)
    return false;
  for (uint32_t group = 0; group < layout->groups; group++)
    free_blocks[group] = number_at(descriptors + (size_t)group * layout->descriptor_bytes + 12, 2);
  return true;
}

void remember_groups(const char *device) {
  int fd = open(device, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  struct layout layout = read_layout(fd);
  if (read_groups(fd, &layout, known)) snprintf(disk, sizeof disk, "%s", device);
  close(fd);
}

static uint64_t until_ms;

static void trim_changed(int root, const struct layout *layout) {
  uint64_t length = (uint64_t)layout->blocks_per_group * layout->block_bytes;
  for (uint32_t group = 0; group < layout->groups && now_ms() < until_ms; group++) {
    if (found[group] == known[group]) continue;
    struct fstrim_range range = {.start = group * length, .len = length, .minlen = PIECE_MIN};
    if (ioctl(root, FITRIM, &range) != 0) return;
    known[group] = found[group];
  }
}

/* Freed blocks are free once the file system's journal says so. */
static int trim_all(void *unused) {
  (void)unused;
  int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int device = open(disk, O_RDONLY | O_CLOEXEC);
  if (root < 0 || device < 0 || syncfs(root) != 0) _exit(1);
  struct layout layout = read_layout(device);
  if (read_groups(device, &layout, found)) trim_changed(root, &layout);
  _exit(0);
}

static pid_t trimmer;
static bool is_overdue;
static uint32_t waiting;

static void answer_trim(void) {
  if (waiting != 0) answer_done(waiting);
  waiting = 0;
}

/* In a child that shares our memory, as a sync is: a disk that hangs must not silence us. */
void trim_root(uint32_t budget_ms, uint32_t request) {
  static _Alignas(16) char stack[16 * 1024];
  if (trimmer > 0) return answer_failed(request, FAILURE_BUSY);
  if (disk[0] == '\0') return answer_done(request); /* Without a disk of its own, or not ext4. */
  until_ms = now_ms() + budget_ms;
  is_overdue = false;
  trimmer = clone(trim_all, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
  if (trimmer < 0) return answer_error(request, "trim", errno);
  waiting = request;
}

bool trim_reaped(pid_t pid, int status) {
  (void)status;
  if (trimmer <= 0 || pid != trimmer) return false;
  trimmer = 0;
  answer_trim();
  return true;
}

void trim_forget_host(void) { waiting = 0; }

/* A group with many small pieces may take longer than the budget: the kernel stops in between. */
uint64_t trim_tick(void) {
  if (trimmer <= 0 || is_overdue) return UINT64_MAX;
  if (now_ms() < until_ms) return until_ms;
  is_overdue = true;
  kill(trimmer, SIGKILL);
  return UINT64_MAX;
}
