/*
 * What the parts of ram.c share: the RAM of a virtual machine as a process maps it, and the file
 * that keeps the pages of it that differ from its template.
 *
 * The file, little-endian:
 *   one page        struct pages_header, then zeros
 *   pages           the data of all extents, one after the other
 *   extents         struct extent each, ascending, none touching the next
 *   block hashes    XXH64 of each 256 pages of data, the last block may be shorter
 * Its length follows from the header. The header is written last.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { KEY_BYTES = 32, BLOCK_PAGES = 256, THREADS_MAX = 4 };

struct pages_header {
  char magic[8];
  uint32_t version, page_bytes;
  uint64_t ram_bytes;
  uint64_t extent_count, page_count;
  uint64_t index_hash; /* of extents and block hashes */
  uint8_t key[KEY_BYTES];
  uint64_t header_hash; /* of all before */
};

struct extent {
  uint32_t first, count; /* pages */
};

/* The RAM of a process: one private mapping of a whole file, be it without the holes. */
struct ram {
  pid_t pid;
  int process; /* /proc/PID */
  uint64_t base, bytes;
  dev_t device;
  ino_t inode;
};

/* ram-process.c. All answer 0 or an errno. */
int ram_open(struct ram *ram, pid_t pid, dev_t device, ino_t inode, uint64_t bytes);
/* ESRCH when the process was not the same all the time. */
int ram_close(struct ram *ram);
/* Finds the first extent of changed pages from the page on; a count of 0 when there is none. */
struct changes {
  const struct ram *ram;
  int pagemap;
  uint64_t next; /* page */
  uint64_t *entries;
  uint64_t entries_first, entries_count;
};
int changes_open(struct changes *changes, const struct ram *ram);
int changes_next(struct changes *changes, uint32_t count_max, struct extent *found);
void changes_close(struct changes *changes);
/* Copies these pages out of the process, or into it. */
int ram_read(const struct ram *ram, const struct extent *extents, size_t count, uint8_t *into);
int ram_write(const struct ram *ram, const struct extent *extents, size_t count, uint8_t *from);

/* ram-file.c */
struct pages_file {
  int fd;
  struct pages_header header;
  struct extent *extents;
  uint64_t *hashes; /* behind the extents, in the same memory */
  uint64_t block_count;
};

uint32_t page_bytes(void);
bool is_zero(const uint8_t *bytes, size_t length);
int read_all(int fd, void *into, size_t length, uint64_t offset);
int write_all(int fd, const void *from, size_t length, uint64_t offset);
/* EBADMSG: torn or rotten. ESTALE: of another template, or of a RAM of another size. */
int pages_open(struct pages_file *file, int fd, uint64_t ram_bytes, const uint8_t *key);
void pages_close(struct pages_file *file);
uint64_t pages_in_block(const struct pages_file *file, uint64_t block);
int pages_read(const struct pages_file *file, uint64_t block, uint8_t *into);
/* EBADMSG when these are not the block's pages. */
int pages_check(const struct pages_file *file, uint64_t block, const uint8_t *pages);

/* ram-save.c, ram-load.c */
int save_pages(const struct ram *ram, int template, int out, const uint8_t *key, uint64_t *saved);
int load_pages(const struct ram *ram, int in, const uint8_t *key, uint64_t *loaded);
