/*
 * Saving the changed pages of a machine whose memory, template, and mappings are of any kind, and
 * loading them into another one: it then has the same memory. A mapping that is not the whole file,
 * once and in order, is refused.
 */
#define _GNU_SOURCE
#include "../../../../agent/native/addon/ram-save.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../../../../agent/native/addon/ram-load.h"
#include "../fuzz.h"
#include "../kernel.h"

enum {
  PAGE = 128,
  PAGES_MAX = 1200,
  KIND_MAPS = KIND_OWN,
  KIND_PAGEMAP,
  KIND_TEMPLATE,
  KIND_SAVED
};
enum { FD_TEMPLATE = 3, FD_SAVED = 4, PID = 77, INODE = 99, AREAS_MAX = 8 };

static const uint64_t BASE = 0x7f0000000000, CHANGED = UINT64_C(1) << 63,
                      SHARED = UINT64_C(1) << 61;

static size_t pages, saved_length;
static uint8_t memory[PAGES_MAX][PAGE], template[PAGES_MAX][PAGE], loaded_memory[PAGES_MAX][PAGE];
static bool is_hole[PAGES_MAX], is_changed[PAGES_MAX];
static uint8_t saved[PAGE * (PAGES_MAX + 1) + PAGES_MAX * 16];
static char maps[2048];
static bool is_whole;

long fake_sysconf(int name) { return name == _SC_PAGESIZE ? PAGE : 1 + take_answer() % 4; }

int kind_of_path(const char *path) {
  return strcmp(path, "maps") == 0      ? KIND_MAPS
         : strcmp(path, "pagemap") == 0 ? KIND_PAGEMAP
                                        : KIND_PLAIN;
}
int fake_faccessat(int directory, const char *path, int mode, int flags) {
  return kind_of(directory), (void)path, (void)mode, (void)flags, call_fails() ? -1 : 0;
}

static int maps_fd;
FILE *fake_fdopen(int fd, const char *mode) {
  CHECK(kind_of(fd) == KIND_MAPS && strcmp(mode, "r") == 0);
  if (call_fails()) return NULL;
  return maps_fd = fd, fmemopen(maps, strlen(maps) + (maps[0] == '\0'), "r");
}
int fake_close(int fd);
int fake_fclose(FILE *file) { return fake_close(maps_fd), fclose(file); }

static ssize_t copy_from(const void *from, size_t size, void *into, size_t length,
                         uint64_t offset) {
  if (offset > size) offset = size;
  if (length > size - offset) length = size - (size_t)offset;
  memcpy(into, (const uint8_t *)from + offset, length);
  return (ssize_t)length;
}

ssize_t fake_pread(int fd, void *into, size_t length, off_t offset) {
  int kind = kind_of(fd);
  if (kind == KIND_SAVED) return copy_from(saved, saved_length, into, length, (uint64_t)offset);
  if (kind == KIND_TEMPLATE)
    return copy_from(template, pages * PAGE, into, length, (uint64_t)offset);
  CHECK(kind == KIND_PAGEMAP && length % 8 == 0);
  uint64_t first = (uint64_t)offset / 8 - BASE / PAGE, *entries = into;
  for (size_t index = 0; index < length / 8; index++) {
    CHECK(first + index < pages);
    entries[index] = is_changed[first + index] ? CHANGED >> (first & 1)
                     : index % 2               ? CHANGED | SHARED
                                               : 0;
  }
  return (ssize_t)length;
}

ssize_t fake_pwrite(int fd, const void *bytes, size_t length, off_t offset) {
  CHECK(kind_of(fd) == KIND_SAVED && (size_t)offset + length <= sizeof saved);
  memcpy(saved + offset, bytes, length);
  if ((size_t)offset + length > saved_length) saved_length = (size_t)offset + length;
  return (ssize_t)length;
}
int fake_ftruncate(int fd, off_t length) {
  CHECK(kind_of(fd) == KIND_SAVED);
  return saved_length = (size_t)length, 0;
}
int fake_sync_file_range(int fd, off_t offset, off_t length, unsigned flags) {
  CHECK(kind_of(fd) == KIND_SAVED && offset >= 0 && length > 0 && flags != 0);
  return 0;
}
int fake_fstat(int fd, struct stat *status) {
  CHECK(kind_of(fd) == KIND_SAVED);
  memset(status, 0, sizeof *status);
  return status->st_size = (off_t)saved_length, 0;
}
off_t fake_lseek(int fd, off_t start, int whence) {
  CHECK(kind_of(fd) == KIND_TEMPLATE && start % PAGE == 0);
  size_t index = (size_t)start / PAGE;
  while (index < pages && is_hole[index] == (whence == SEEK_DATA)) index++;
  if (index < pages || whence == SEEK_HOLE) return (off_t)index * PAGE;
  return errno = ENXIO, -1;
}

/* Between the machine's memory and ours, in either direction. */
static ssize_t move(uint8_t (*machine)[PAGE], bool is_reading, const struct iovec *local,
                    const struct iovec *remote, unsigned long count) {
  uint8_t *ours = local->iov_base;
  for (unsigned long index = 0; index < count; index++) {
    uint64_t start = (uint64_t)(uintptr_t)remote[index].iov_base - BASE;
    size_t length = remote[index].iov_len;
    CHECK(start <= pages * PAGE && length <= pages * PAGE - start);
    if (is_reading)
      memcpy(ours, (uint8_t *)machine + start, length);
    else
      memcpy((uint8_t *)machine + start, ours, length);
    ours += length;
  }
  CHECK(ours == (uint8_t *)local->iov_base + local->iov_len);
  return (ssize_t)local->iov_len;
}
ssize_t fake_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
                              const struct iovec *remote, unsigned long count,
                              unsigned long flags) {
  CHECK(pid == PID && local_count == 1 && flags == 0);
  return move(memory, true, local, remote, count);
}
ssize_t fake_process_vm_writev(pid_t pid, const struct iovec *local, unsigned long local_count,
                               const struct iovec *remote, unsigned long count,
                               unsigned long flags) {
  CHECK(pid == PID && local_count == 1 && flags == 0);
  return move(loaded_memory, false, local, remote, count);
}

/* Lines of /proc/PID/maps: the whole in pieces, or something that is not the whole. */
static void take_maps(uint8_t how) {
  size_t length = 0, next = 0, areas = 1 + take_u8() % AREAS_MAX;
  bool is_shifted = false;
  is_whole = pages > 0;
  maps[0] = '\0';
  for (size_t area = 0; area < areas; area++) {
    size_t end = area + 1 == areas ? pages : next + take_u8() % (pages - next + 1);
    /* An area at its file's place, of the file or, but for the first, anonymous. */
    bool is_anonymous = next > 0 && (how & 1) && area % 2 == 1, is_last = area + 1 == areas;
    uint8_t change = how & 2 ? take_u8() : 0;
    uint64_t start = next + (change == 1), offset = next + (change == 2);
    if (end == next) continue;
    /* No two areas share a page, and a file that begins a page later is not whole again. */
    if (change == 3 && (!is_last || is_shifted)) change = 0;
    if (change == 1) is_shifted = true;
    bool is_bad = change == 1 || change == 4 || change == 5;
    if (is_bad || (!is_anonymous && change > 0 && change < 7)) is_whole = false;
    length += (size_t)snprintf(maps + length, sizeof maps - length,
                               "%llx-%llx %s %08llx %02x:%02x %u %s\n",
                               (unsigned long long)(BASE + start * PAGE),
                               (unsigned long long)(BASE + (end + (change == 3)) * PAGE),
                               change == 4   ? "rw-s"
                               : change == 5 ? "r--p"
                                             : "rw-p",
                               is_anonymous ? 0ull : (unsigned long long)(offset * PAGE), 0, 1,
                               is_anonymous  ? 0u
                               : change == 6 ? 98u
                                             : (unsigned)INODE,
                               how & 4 ? "/memfd:ram (deleted)" : "");
    next = end;
  }
  if (how & 8) length += take_into(maps + length, take_u8());
  maps[length] = '\0';
}

static void take_memory(void) {
  uint8_t how = 0, left = 0;
  for (size_t page = 0; page < pages; page++, left--) {
    if (left == 0) how = take_u8(), left = 1u + (how >> 4) * 9u;
    is_hole[page] = how & 1;
    memset(template[page], how & 1 ? 0 : 1 + (int)page % 3, PAGE);
    is_changed[page] = how & 2;
    memcpy(memory[page], template[page], PAGE);
    if ((how & 6) == 6) memset(memory[page], how & 8 ? (int)page : 0, PAGE);
  }
  memcpy(loaded_memory, template, sizeof template);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  const uint8_t key[KEY_BYTES] = {9};
  uint64_t count = 0, loaded = 0;
  struct ram ram;
  begin_input(bytes, length);
  begin_kernel(3);
  set_kind(FD_TEMPLATE, KIND_TEMPLATE);
  set_kind(FD_SAVED, KIND_SAVED);
  uint8_t how = take_u8();
  pages = take_up_to(PAGES_MAX);
  saved_length = 0;
  take_maps(how);
  take_memory();
  int error = ram_open(&ram, PID, makedev(0, 1), INODE, pages * PAGE);
  if (!(how & 8)) CHECK((error == 0) == is_whole);
  if (error == 0 && ram.base == BASE) {
    bool has_template = !(how & 16);
    CHECK(save_pages(&ram, has_template ? FD_TEMPLATE : -1, FD_SAVED, key, &count) == 0);
    CHECK(load_pages(&ram, FD_SAVED, key, &loaded) == 0 && loaded == count);
    CHECK(memcmp(memory, loaded_memory, pages * PAGE) == 0);
  }
  if (error == 0) ram_close(&ram);
  CHECK(open_fds() == 5);
  end_input_without_leaks();
  return 0;
}
