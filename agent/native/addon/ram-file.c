#define _GNU_SOURCE
#include "ram-file.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hash.h"

uint32_t page_bytes(void) { return (uint32_t)sysconf(_SC_PAGESIZE); }

bool is_zero(const uint8_t *bytes, size_t length) {
  /* Every byte equals the one after it, and the first is zero. */
  return bytes[0] == 0 && memcmp(bytes, bytes + 1, length - 1) == 0;
}

int read_all(int fd, void *into, size_t length, uint64_t offset) {
  uint8_t *bytes = into;
  while (length > 0) {
    ssize_t count = pread(fd, bytes, length, (off_t)offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (count == 0) return EBADMSG;
    bytes += count;
    length -= (size_t)count;
    offset += (uint64_t)count;
  }
  return 0;
}

int write_all(int fd, const void *from, size_t length, uint64_t offset) {
  const uint8_t *bytes = from;
  while (length > 0) {
    ssize_t count = pwrite(fd, bytes, length, (off_t)offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    bytes += count;
    length -= (size_t)count;
    offset += (uint64_t)count;
  }
  return 0;
}

static int check_header(const struct pages_header *header, uint64_t ram_bytes, const uint8_t *key) {
  if (memcmp(header->magic, "BERTHRAM", sizeof header->magic) != 0 ||
      header->header_hash != hash_of(header, offsetof(struct pages_header, header_hash)))
    return EBADMSG;
  if (header->version != 1 || header->page_bytes != page_bytes() ||
      header->ram_bytes != ram_bytes || memcmp(header->key, key, KEY_BYTES) != 0)
    return ESTALE;
  /* Bounds everything computed from them below: there are at most 2^32 pages. */
  if (header->page_count > ram_bytes / header->page_bytes ||
      header->extent_count > header->page_count)
    return EBADMSG;
  return 0;
}

static int check_extents(const struct pages_file *file) {
  uint64_t next = 0, total = 0, pages = file->header.ram_bytes / file->header.page_bytes;
  for (uint64_t i = 0; i < file->header.extent_count; i++) {
    const struct extent *extent = &file->extents[i];
    uint64_t end = (uint64_t)extent->first + extent->count;
    if (extent->count == 0 || extent->first < next || end > pages) return EBADMSG;
    next = end;
    total += extent->count;
  }
  return total == file->header.page_count ? 0 : EBADMSG;
}

static int read_index(struct pages_file *file) {
  const struct pages_header *header = &file->header;
  struct stat found;
  size_t extents_bytes = header->extent_count * sizeof(struct extent);
  size_t bytes = extents_bytes + file->block_count * sizeof(uint64_t);
  uint64_t offset = (header->page_count + 1) * header->page_bytes;
  if (fstat(file->fd, &found) != 0) return errno;
  if ((uint64_t)found.st_size != offset + bytes) return EBADMSG;
  if ((file->extents = malloc(bytes + 1)) == NULL) return ENOMEM;
  file->hashes = (uint64_t *)(file->extents + header->extent_count);
  int error = read_all(file->fd, file->extents, bytes, offset);
  if (error == 0 && hash_of(file->extents, bytes) != header->index_hash) error = EBADMSG;
  return error == 0 ? check_extents(file) : error;
}

int pages_open(struct pages_file *file, int fd, uint64_t ram_bytes, const uint8_t *key) {
  *file = (struct pages_file){.fd = fd};
  int error = read_all(fd, &file->header, sizeof file->header, 0);
  if (error == 0) error = check_header(&file->header, ram_bytes, key);
  if (error != 0) return error;
  file->block_count = (file->header.page_count + BLOCK_PAGES - 1) / BLOCK_PAGES;
  error = read_index(file);
  if (error != 0) pages_close(file);
  return error;
}

void pages_close(struct pages_file *file) {
  free(file->extents);
  file->extents = NULL;
}

uint64_t pages_in_block(const struct pages_file *file, uint64_t block) {
  uint64_t left = file->header.page_count - block * BLOCK_PAGES;
  return left < BLOCK_PAGES ? left : BLOCK_PAGES;
}

int pages_read(const struct pages_file *file, uint64_t block, uint8_t *into) {
  uint64_t size = file->header.page_bytes;
  return read_all(file->fd, into, pages_in_block(file, block) * size,
                  (1 + block * BLOCK_PAGES) * size);
}

int pages_check(const struct pages_file *file, uint64_t block, const uint8_t *pages) {
  size_t length = pages_in_block(file, block) * file->header.page_bytes;
  return hash_of(pages, length) == file->hashes[block] ? 0 : EBADMSG;
}
