/* The CRCs that S3 has: reflected, with a start value and a final mask of all ones. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct crc {
  uint64_t value; /* Value of the register. */
  uint32_t kind;  /* An index of `kinds` in crc.c: 0 CRC-32, 1 CRC-32C, 2 CRC-64/NVME. */
  uint32_t unused;
};

/* False when there is no such kind. */
bool crc_init(struct crc *crc, uint32_t kind);
void crc_update(struct crc *crc, const uint8_t *bytes, size_t length);
uint64_t crc_digest(const struct crc *crc);

/* The CRC of the bytes of `first` followed by the `second_bytes` bytes of `second`. */
uint64_t crc_combine(uint32_t kind, uint64_t first, uint64_t second, uint64_t second_bytes);
