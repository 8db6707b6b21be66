/* XXH64 with seed 0. Words are little-endian, as all hosts are. */
#include "hash.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "written for little-endian hosts"
#endif

#define PRIME1 UINT64_C(0x9E3779B185EBCA87)
#define PRIME2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define PRIME3 UINT64_C(0x165667B19E3779F9)
#define PRIME4 UINT64_C(0x85EBCA77C2B2AE63)
#define PRIME5 UINT64_C(0x27D4EB2F165667C5)

static uint64_t rotate(uint64_t value, unsigned bits) {
  return (value << bits) | (value >> (64 - bits));
}

static uint64_t word(const uint8_t *bytes) {
  uint64_t value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

static uint64_t mix(uint64_t lane, uint64_t input) {
  return rotate(lane + input * PRIME2, 31) * PRIME1;
}

static void take_blocks(uint64_t lanes[4], const uint8_t *bytes, size_t count) {
  uint64_t a = lanes[0], b = lanes[1], c = lanes[2], d = lanes[3];
  for (; count > 0; count--, bytes += 32) {
    a = mix(a, word(bytes));
    b = mix(b, word(bytes + 8));
    c = mix(c, word(bytes + 16));
    d = mix(d, word(bytes + 24));
  }
  lanes[0] = a, lanes[1] = b, lanes[2] = c, lanes[3] = d;
}

void hash_init(struct hash *hash) {
  *hash = (struct hash){.lanes = {PRIME1 + PRIME2, PRIME2, 0, 0 - PRIME1}};
}

void hash_update(struct hash *hash, const void *data, size_t length) {
  const uint8_t *bytes = data;
  size_t held = hash->length_bytes % 32;
  if (length == 0) return; /* `data` may be NULL then. */
  hash->length_bytes += length;
  if (held > 0) {
    size_t part = length < 32 - held ? length : 32 - held;
    memcpy(hash->block + held, bytes, part);
    if (held + part < 32) return;
    take_blocks(hash->lanes, hash->block, 1);
    bytes += part;
    length -= part;
  }
  take_blocks(hash->lanes, bytes, length / 32);
  memcpy(hash->block, bytes + length / 32 * 32, length % 32);
}

static uint64_t join_lanes(const uint64_t lanes[4]) {
  uint64_t all =
      rotate(lanes[0], 1) + rotate(lanes[1], 7) + rotate(lanes[2], 12) + rotate(lanes[3], 18);
  for (int i = 0; i < 4; i++) all = (all ^ mix(0, lanes[i])) * PRIME1 + PRIME4;
  return all;
}

uint64_t hash_digest(const struct hash *hash) {
  const uint8_t *rest = hash->block;
  size_t left = hash->length_bytes % 32;
  uint64_t all = hash->length_bytes < 32 ? PRIME5 : join_lanes(hash->lanes);
  all += hash->length_bytes;
  for (; left >= 8; left -= 8, rest += 8)
    all = rotate(all ^ mix(0, word(rest)), 27) * PRIME1 + PRIME4;
  if (left >= 4) {
    uint32_t half;
    memcpy(&half, rest, sizeof half);
    all = rotate(all ^ half * PRIME1, 23) * PRIME2 + PRIME3;
    left -= 4;
    rest += 4;
  }
  for (; left > 0; left--, rest++) all = rotate(all ^ *rest * PRIME5, 11) * PRIME1;
  all = (all ^ (all >> 33)) * PRIME2;
  all = (all ^ (all >> 29)) * PRIME3;
  return all ^ (all >> 32);
}

uint64_t hash_of(const void *bytes, size_t length) {
  struct hash hash;
  hash_init(&hash);
  hash_update(&hash, bytes, length);
  return hash_digest(&hash);
}
