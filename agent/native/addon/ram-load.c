#define _GNU_SOURCE
#include "ram-load.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "ram-file.h"

enum { THREADS_MAX = 4 };

/* A walk over all blocks, by several threads. */
struct walk {
  const struct pages_file *file;
  const struct ram *ram;  /* NULL: the blocks are only checked. */
  const uint64_t *starts; /* See find_starts. */
  _Atomic uint64_t next;
  _Atomic int error;
};

/* Two numbers for each block: the extent that it starts in, and the page of that extent. */
static uint64_t *find_starts(const struct pages_file *file) {
  uint64_t *starts = malloc((2 * file->block_count + 1) * sizeof *starts), extent = 0, page = 0;
  if (starts == NULL) return NULL;
  for (uint64_t block = 0; block < file->block_count; block++) {
    starts[2 * block] = extent;
    starts[2 * block + 1] = page;
    for (uint64_t left = pages_in_block(file, block); left > 0;) {
      uint64_t part = file->extents[extent].count - page;
      if (part > left) part = left;
      left -= part;
      page += part;
      if (page < file->extents[extent].count) continue;
      extent++;
      page = 0;
    }
  }
  return starts;
}

static int write_block(const struct walk *walk, uint64_t block, uint8_t *pages) {
  struct extent batch[BLOCK_PAGES];
  size_t count = 0;
  uint64_t extent = walk->starts[2 * block], skipped = walk->starts[2 * block + 1];
  for (uint64_t left = pages_in_block(walk->file, block); left > 0; extent++, skipped = 0) {
    const struct extent *whole = &walk->file->extents[extent];
    uint64_t part = whole->count - skipped;
    if (part > left) part = left;
    batch[count++] = (struct extent){(uint32_t)(whole->first + skipped), (uint32_t)part};
    left -= part;
  }
  return ram_write(walk->ram, batch, count, pages);
}

static int walk_blocks(struct walk *walk) {
  uint8_t *pages = malloc(BLOCK_PAGES * (size_t)page_bytes());
  int error = pages == NULL ? ENOMEM : 0;
  while (error == 0 && atomic_load(&walk->error) == 0) {
    uint64_t block = atomic_fetch_add(&walk->next, 1);
    if (block >= walk->file->block_count) break;
    error = pages_read(walk->file, block, pages);
    if (error != 0) break;
    error =
        walk->ram == NULL ? pages_check(walk->file, block, pages) : write_block(walk, block, pages);
  }
  free(pages);
  return error;
}

static void *run_walk(void *argument) {
  struct walk *walk = argument;
  int none = 0, error = walk_blocks(walk);
  if (error != 0) atomic_compare_exchange_strong(&walk->error, &none, error);
  return NULL;
}

static long helpers_wanted(const struct pages_file *file) {
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  if (file->block_count < 4) return 0; /* Starting a thread would take longer than it saves. */
  return processors < THREADS_MAX ? processors - 1 : THREADS_MAX - 1;
}

static int walk_file(const struct pages_file *file, const struct ram *ram, const uint64_t *starts) {
  struct walk walk = {.file = file, .ram = ram, .starts = starts};
  pthread_t helpers[THREADS_MAX];
  long wanted = helpers_wanted(file), started = 0;
  while (started < wanted && pthread_create(&helpers[started], NULL, run_walk, &walk) == 0)
    started++;
  run_walk(&walk);
  while (started > 0) pthread_join(helpers[--started], NULL);
  return atomic_load(&walk.error);
}

int load_pages(const struct ram *ram, int in, const uint8_t *key, uint64_t *loaded) {
  struct pages_file file;
  int error = pages_open(&file, in, ram->bytes, key);
  if (error != 0) return error;
  *loaded = file.header.page_count;
  uint64_t *starts = find_starts(&file);
  if (starts == NULL) error = ENOMEM;
  /* The whole file is checked before anything is written. */
  if (error == 0) error = walk_file(&file, NULL, starts);
  if (error == 0) error = walk_file(&file, ram, starts);
  free(starts);
  pages_close(&file);
  return error;
}
