#define _GNU_SOURCE
#include "ram-save.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hash.h"
#include "ram-file.h"

enum { WRITE_BACK_BLOCKS = 8 };

/* Writes one block while the next one is read, in a thread of its own if one can be started. */
struct writer {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int out, error;
  bool has_thread, is_ending;
  const uint8_t *block; /* To be written; NULL when there is nothing. */
  size_t length;
  uint64_t size; /* Size of a page. */
  uint64_t *hashes, block_count, hash_room;
};

struct saver {
  const struct ram *ram;
  int template;
  uint64_t size; /* Size of a page. */
  /*
   * BLOCK_PAGES each: two take turns in being filled and written; one holds the template's pages.
   */
  uint8_t *block, *other, *original;
  uint64_t fill; /* Pages in the block. */
  uint64_t data_start,
      data_end; /* The template's current data; beyond the end it has not been looked at. */
  struct extent *extents;
  uint64_t extent_count, page_count, extent_room;
  struct writer writer;
};

/* Makes space for one more element, doubling the array when it is full. */
static int grow(void **array, uint64_t *room, uint64_t count, size_t element_bytes) {
  if (count < *room) return 0;
  uint64_t more = *room == 0 ? 1024 : *room * 2;
  void *moved = realloc(*array, more * element_bytes);
  if (moved == NULL) return ENOMEM;
  *array = moved;
  *room = more;
  return 0;
}

static int add_page(struct saver *saver, uint32_t page) {
  struct extent *last = saver->extent_count == 0 ? NULL : &saver->extents[saver->extent_count - 1];
  saver->page_count++;
  if (last != NULL && page == (uint64_t)last->first + last->count) {
    last->count++;
    return 0;
  }
  int error = grow((void **)&saver->extents, &saver->extent_room, saver->extent_count,
                   sizeof *saver->extents);
  if (error == 0) saver->extents[saver->extent_count++] = (struct extent){page, 1};
  return error;
}

static int write_block(struct writer *writer) {
  uint64_t offset = (1 + writer->block_count * BLOCK_PAGES) * writer->size;
  int error = grow((void **)&writer->hashes, &writer->hash_room, writer->block_count,
                   sizeof *writer->hashes);
  if (error == 0) error = write_all(writer->out, writer->block, writer->length, offset);
  if (error != 0) return error;
  writer->hashes[writer->block_count++] = hash_of(writer->block, writer->length);
  if (writer->block_count % WRITE_BACK_BLOCKS == 0) {
    uint64_t behind = (uint64_t)(WRITE_BACK_BLOCKS - 1) * BLOCK_PAGES * writer->size;
    /* Started now, so that the caller's fsync has less to do. */
    sync_file_range(writer->out, (off_t)(offset - behind), (off_t)(behind + writer->length),
                    SYNC_FILE_RANGE_WRITE);
  }
  return 0;
}

static void *run_writer(void *argument) {
  struct writer *writer = argument;
  pthread_mutex_lock(&writer->mutex);
  for (;;) {
    while (writer->block == NULL && !writer->is_ending)
      pthread_cond_wait(&writer->changed, &writer->mutex);
    if (writer->block == NULL) break;
    pthread_mutex_unlock(&writer->mutex);
    int error = write_block(writer);
    pthread_mutex_lock(&writer->mutex);
    if (writer->error == 0) writer->error = error;
    writer->block = NULL;
    pthread_cond_signal(&writer->changed);
  }
  pthread_mutex_unlock(&writer->mutex);
  return NULL;
}

static void start_writer(struct writer *writer) {
  pthread_mutex_init(&writer->mutex, NULL);
  pthread_cond_init(&writer->changed, NULL);
  writer->has_thread = pthread_create(&writer->thread, NULL, run_writer, writer) == 0;
}

/* Waits until all is written. */
static int drain_writer(struct writer *writer) {
  pthread_mutex_lock(&writer->mutex);
  while (writer->block != NULL) pthread_cond_wait(&writer->changed, &writer->mutex);
  int error = writer->error;
  pthread_mutex_unlock(&writer->mutex);
  return error;
}

static int end_writer(struct writer *writer) {
  int error = drain_writer(writer);
  pthread_mutex_lock(&writer->mutex);
  writer->is_ending = true;
  pthread_cond_signal(&writer->changed);
  pthread_mutex_unlock(&writer->mutex);
  if (writer->has_thread) pthread_join(writer->thread, NULL);
  pthread_cond_destroy(&writer->changed);
  pthread_mutex_destroy(&writer->mutex);
  return error;
}

/* Hands over the block, which must not change until the next call. */
static int give_to_writer(struct writer *writer, const uint8_t *block, size_t length) {
  int error = drain_writer(writer);
  if (error != 0) return error;
  pthread_mutex_lock(&writer->mutex);
  writer->block = block;
  writer->length = length;
  pthread_cond_signal(&writer->changed);
  pthread_mutex_unlock(&writer->mutex);
  if (writer->has_thread) return 0;
  error = write_block(writer);
  writer->block = NULL;
  return error;
}

static int flush_block(struct saver *saver) {
  uint8_t *block = saver->block;
  if (saver->fill == 0) return 0;
  int error = give_to_writer(&saver->writer, block, saver->fill * saver->size);
  saver->block = saver->other;
  saver->other = block;
  saver->fill = 0;
  return error;
}

/* Finds the next data of the template; everything before it is a hole. */
static int find_data(struct saver *saver, uint64_t start) {
  off_t data = lseek(saver->template, (off_t)start, SEEK_DATA);
  if (data < 0 && errno != ENXIO) return errno;
  saver->data_start = saver->data_end = saver->ram->bytes;
  if (data < 0) return 0; /* A hole to the end. */
  off_t hole = lseek(saver->template, data, SEEK_HOLE);
  if (hole < 0) return errno;
  saver->data_start = (uint64_t)data;
  saver->data_end = (uint64_t)hole;
  return 0;
}

/* Reads the template's pages, unless they are a hole, which reads as zeros. */
static int read_original(struct saver *saver, const struct extent *extent, bool *is_hole) {
  uint64_t start = extent->first * saver->size, length = extent->count * saver->size;
  if (start >= saver->data_end) {
    int error = find_data(saver, start);
    if (error != 0) return error;
  }
  *is_hole = start + length <= saver->data_start;
  return *is_hole ? 0 : read_all(saver->template, saver->original, length, start);
}

static bool is_original(const struct saver *saver, const uint8_t *page, uint32_t index,
                        bool is_hole) {
  if (saver->template <0) return false;
  if (is_hole) return is_zero(page, saver->size);
  return memcmp(page, saver->original + index * saver->size, saver->size) == 0;
}

/* Moves the pages that were read after the block's fill together, without the unchanged ones. */
static int keep_changed(struct saver *saver, const struct extent *extent, const uint8_t *pages) {
  bool is_hole = false;
  int error = saver->template <0 ? 0 : read_original(saver, extent, &is_hole);
  for (uint32_t i = 0; error == 0 && i < extent->count; i++) {
    const uint8_t *page = pages + i * saver->size;
    uint8_t *place = saver->block + saver->fill * saver->size;
    if (is_original(saver, page, i, is_hole)) continue;
    if (place != page) memcpy(place, page, saver->size);
    saver->fill++;
    error = add_page(saver, extent->first + i);
  }
  return error;
}

/* Fills the block with the next changed pages. */
static int take_pages(struct saver *saver, struct changes *changes, bool *is_end) {
  struct extent batch[BLOCK_PAGES] = {0};
  size_t count = 0;
  uint32_t room = (uint32_t)(BLOCK_PAGES - saver->fill);
  int error = 0;
  while (error == 0 && room > 0 && !*is_end) {
    error = changes_next(changes, room, &batch[count]);
    *is_end = batch[count].count == 0;
    room -= batch[count].count;
    if (!*is_end) count++;
  }
  uint8_t *pages = saver->block + saver->fill * saver->size;
  if (error == 0) error = ram_read(saver->ram, batch, count, pages);
  for (size_t i = 0; error == 0 && i < count; i++) {
    error = keep_changed(saver, &batch[i], pages);
    pages += batch[i].count * saver->size;
  }
  return error;
}

static int write_index(struct saver *saver, const uint8_t *key) {
  const struct writer *writer = &saver->writer;
  uint64_t offset = (1 + saver->page_count) * saver->size;
  size_t extents_bytes = saver->extent_count * sizeof *saver->extents;
  size_t hashes_bytes = writer->block_count * sizeof *writer->hashes;
  struct hash index;
  hash_init(&index);
  hash_update(&index, saver->extents, extents_bytes);
  hash_update(&index, writer->hashes, hashes_bytes);
  struct pages_header header = {
      .magic = {'B', 'E', 'R', 'T', 'H', 'R', 'A', 'M'},
      .version = 1,
      .page_bytes = (uint32_t)saver->size,
      .ram_bytes = saver->ram->bytes,
      .extent_count = saver->extent_count,
      .page_count = saver->page_count,
      .index_hash = hash_digest(&index),
  };
  memcpy(header.key, key, KEY_BYTES);
  header.header_hash = hash_of(&header, offsetof(struct pages_header, header_hash));
  int error = write_all(writer->out, saver->extents, extents_bytes, offset);
  if (error == 0)
    error = write_all(writer->out, writer->hashes, hashes_bytes, offset + extents_bytes);
  if (error != 0) return error;
  if (ftruncate(writer->out, (off_t)(offset + extents_bytes + hashes_bytes)) != 0) return errno;
  return write_all(writer->out, &header, sizeof header, 0);
}

static int save_all(struct saver *saver, struct changes *changes) {
  bool is_end = false;
  int error = 0;
  start_writer(&saver->writer);
  while (error == 0 && !is_end) {
    error = take_pages(saver, changes, &is_end);
    if (error == 0 && (is_end || saver->fill == BLOCK_PAGES)) error = flush_block(saver);
  }
  int ended = end_writer(&saver->writer);
  return error == 0 ? ended : error;
}

int save_pages(const struct ram *ram, int template, int out, const uint8_t *key, uint64_t *saved) {
  struct changes changes;
  struct saver saver = {.ram = ram, .template = template, .size = page_bytes()};
  size_t block_bytes = BLOCK_PAGES * saver.size;
  saver.writer.out = out;
  saver.writer.size = saver.size;
  int error = changes_open(&changes, ram);
  if (error != 0) return error;
  uint8_t *blocks = malloc(3 * block_bytes);
  if (blocks == NULL) {
    error = ENOMEM;
  } else {
    saver.block = blocks;
    saver.other = blocks + block_bytes;
    saver.original = blocks + 2 * block_bytes;
    error = save_all(&saver, &changes);
  }
  if (error == 0) error = write_index(&saver, key);
  *saved = saver.page_count;
  free(blocks);
  free(saver.extents);
  free(saver.writer.hashes);
  changes_close(&changes);
  return error;
}
