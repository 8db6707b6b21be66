/*
 * The file that keeps those pages of a machine's RAM that differ from its template.
 *
 * Its layout, little-endian:
 *   one page        struct pages_header, then zeros
 *   pages           the data of all extents, one after the other
 *   extents         struct extent each, ascending; none touches the next
 *   block hashes    XXH64 of each 256 pages of data; the last block may be shorter
 * The header determines the length. It is written last.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KEY_BYTES = 32, BLOCK_PAGES = 256 };

struct pages_header {
  char magic[8];
  uint32_t version, page_bytes;
  uint64_t ram_bytes;
  uint64_t extent_count, page_count;
  uint64_t index_hash; /* Hash of extents and block hashes. */
  uint8_t key[KEY_BYTES];
  uint64_t header_hash; /* Hash of the fields above. */
};

/* Consecutive pages. */
struct extent {
  uint32_t first, count;
};

struct pages_file {
  int fd;
  struct pages_header header;
  struct extent *extents;
  uint64_t *hashes; /* Behind the extents, in the same allocation. */
  uint64_t block_count;
};

uint32_t page_bytes(void);
bool is_zero(const uint8_t *bytes, size_t length);
/* Both return 0 or an error number; EBADMSG when the file ends before. */
int read_all(int fd, void *into, size_t length, uint64_t offset);
int write_all(int fd, const void *from, size_t length, uint64_t offset);

/*
 * 0 or an error number. EBADMSG: the file is torn or damaged. ESTALE: it belongs to another
 * template or to a RAM of another size.
 */
int pages_open(struct pages_file *file, int fd, uint64_t ram_bytes, const uint8_t *key);
void pages_close(struct pages_file *file);
uint64_t pages_in_block(const struct pages_file *file, uint64_t block);
int pages_read(const struct pages_file *file, uint64_t block, uint8_t *into);
/* EBADMSG when these are not the pages of the block. */
int pages_check(const struct pages_file *file, uint64_t block, const uint8_t *pages);
