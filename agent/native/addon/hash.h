/* XXH64 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md). Detects damage, not manipulation. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct hash {
  uint64_t lanes[4];
  uint64_t length_bytes;
  uint8_t block[32]; /* The last length_bytes % 32 bytes. */
};

void hash_init(struct hash *hash);
void hash_update(struct hash *hash, const void *data, size_t length);
uint64_t hash_digest(const struct hash *hash);
/* The digest of one buffer. */
uint64_t hash_of(const void *bytes, size_t length);
