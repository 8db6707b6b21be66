/*
 * A checkpoint's pages, damaged or made to harm. Its parts come from the input, its hashes are put
 * right where the input says so: nothing is written into the machine beyond its RAM, and nothing at
 * all of a file that is not whole.
 */
#define _GNU_SOURCE
#include "../../../../agent/native/addon/ram-load.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../../../agent/native/addon/hash.h"
#include "../fuzz.h"

/* Small, so that a small input has many blocks of them. */
enum {
  PAGE = 128,
  INDEX_MAX = 4096,
  PAGES_MAX = 2000,
  FILE_MAX = PAGE * (PAGES_MAX + 1) + INDEX_MAX
};

static uint8_t file[FILE_MAX];
static size_t file_length;
static struct ram machine;
static uint64_t written_pages;
static bool is_rotten;

long fake_sysconf(int name) { return name == _SC_PAGESIZE ? PAGE : 1 + take_answer() % 4; }

ssize_t fake_pread(int fd, void *into, size_t length, off_t offset) {
  (void)fd;
  CHECK(offset >= 0);
  size_t at = (size_t)offset > file_length ? file_length : (size_t)offset;
  if (length > file_length - at) length = file_length - at;
  memcpy(into, file + at, length);
  return (ssize_t)length;
}

int fake_fstat(int fd, struct stat *status) {
  (void)fd;
  memset(status, 0, sizeof *status);
  status->st_size = (off_t)file_length;
  return 0;
}

ssize_t fake_pwrite(int fd, const void *bytes, size_t length, off_t offset) {
  CHECK(fd < 0 && bytes == NULL && length == 0 && offset == 0); /* Loading never writes. */
  return -1;
}

int ram_write(const struct ram *ram, const struct extent *extents, size_t count, uint8_t *from) {
  uint64_t pages = 0, next = 0;
  CHECK(ram == &machine && count <= BLOCK_PAGES && !is_rotten);
  for (size_t index = 0; index < count; index++) {
    CHECK(extents[index].first >= next && extents[index].count > 0);
    next = (uint64_t)extents[index].first + extents[index].count;
    CHECK(next * PAGE <= machine.bytes);
    pages += extents[index].count;
  }
  CHECK_READABLE(from, pages * PAGE);
  __atomic_fetch_add(&written_pages, pages, __ATOMIC_RELAXED);
  return 0;
}

/* Hashes of the blocks, of the index, and of the header, each as the input wants them. */
static void put_hashes_right(struct pages_header *header, size_t index_at, uint8_t how) {
  size_t extents = (size_t)header->extent_count * sizeof(struct extent);
  size_t blocks = (size_t)(header->page_count + BLOCK_PAGES - 1) / BLOCK_PAGES;
  bool fits = header->page_count <= PAGES_MAX && header->extent_count <= PAGES_MAX &&
              index_at + extents + 8 * blocks <= file_length;
  for (size_t block = 0; fits && (how & 1) && block < blocks; block++) {
    size_t left = (size_t)header->page_count - block * BLOCK_PAGES;
    uint64_t hash = hash_of(file + PAGE * (1 + block * BLOCK_PAGES),
                            PAGE * (left < BLOCK_PAGES ? left : BLOCK_PAGES));
    is_rotten = is_rotten || (how & 8);
    if (how & 8) hash++;
    memcpy(file + index_at + extents + 8 * block, &hash, 8);
  }
  if (fits && (how & 2)) header->index_hash = hash_of(file + index_at, extents + 8 * blocks);
  if (how & 4) header->header_hash = hash_of(header, offsetof(struct pages_header, header_hash));
}

static void make_file(uint8_t key[KEY_BYTES]) {
  uint8_t how = take_u8(), changes = take_u8();
  struct pages_header header = {.magic = {'B', 'E', 'R', 'T', 'H', 'R', 'A', 'M'},
                                .version = 1,
                                .page_bytes = PAGE,
                                .ram_bytes = machine.bytes};
  memcpy(header.key, key, KEY_BYTES);
  header.page_count = take_u16() % (PAGES_MAX + 1);
  header.extent_count = take_u16() % (INDEX_MAX / sizeof(struct extent));
  size_t pages = (size_t)header.page_count, index_at = PAGE * (1 + pages);
  memset(file + PAGE, 0x5a, PAGE * pages);
  take_into(file + PAGE, pages == 0 ? 0 : take_u8() % PAGE);
  /* Extents one after the other, each as long as the input says; with gaps. */
  uint32_t next = 0;
  size_t extents = (size_t)header.extent_count, blocks = (pages + BLOCK_PAGES - 1) / BLOCK_PAGES;
  struct extent *extent = (struct extent *)(void *)(file + index_at);
  for (size_t index = 0; index < extents; index++) {
    extent[index].first = next + take_u8();
    extent[index].count = changes & 1 ? take_u32() : 1u + take_u8();
    next = extent[index].first + extent[index].count;
  }
  file_length = index_at + extents * sizeof *extent + 8 * blocks;
  if (changes & 2) file_length -= take_u8() % 32;
  if (changes & 4) header.page_count = take_u64();
  if (changes & 8) header.extent_count = take_u64();
  if (changes & 16) take_into(&header, sizeof header);
  put_hashes_right(&header, index_at, how);
  memcpy(file, &header, sizeof header);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  uint8_t key[KEY_BYTES] = {1, 2, 3};
  uint64_t loaded = 0;
  begin_input(bytes, length);
  written_pages = 0;
  is_rotten = false;
  machine = (struct ram){.pid = 77, .base = 0x7f0000000000, .bytes = PAGE * (uint64_t)take_u16()};
  make_file(key);
  int error = load_pages(&machine, 5, key, &loaded);
  CHECK(error == 0 ? written_pages == loaded : written_pages == 0);
  end_input_without_leaks();
  return 0;
}
