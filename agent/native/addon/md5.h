/* MD5 (RFC 1321) whose state is plain memory: it can be stored, copied and continued. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct md5 {
  uint32_t state[4];
  uint64_t length_bytes;
  uint8_t block[64]; /* The last length_bytes % 64 bytes. */
};

void md5_init(struct md5 *md5);
void md5_update(struct md5 *md5, const uint8_t *bytes, size_t length);
void md5_digest(const struct md5 *md5, uint8_t digest[16]);
