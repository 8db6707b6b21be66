/* MD5 and XXH64 in pieces against plain ones that take all at once. */
#include <math.h>
#include <string.h>

#include "../../../../agent/native/addon/hash.h"
#include "../../../../agent/native/addon/md5.h"
#include "../fuzz.h"

static uint32_t left(uint32_t value, unsigned bits) { return value << bits | value >> (32 - bits); }
static uint64_t left64(uint64_t value, unsigned bits) {
  return value << bits | value >> (64 - bits);
}

/* RFC 1321, section 3.4, step by step. */
static void md5_block(uint32_t state[4], const uint8_t *block) {
  static const uint8_t shifts[4][4] = {
      {7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
  uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
  for (unsigned step = 0; step < 64; step++) {
    uint32_t mixed, word, constant = (uint32_t)(int64_t)floor(fabs(sin(step + 1.0)) * 4294967296.0);
    unsigned index;
    if (step < 16)
      mixed = (b & c) | (~b & d), index = step;
    else if (step < 32)
      mixed = (b & d) | (c & ~d), index = (5 * step + 1) % 16;
    else if (step < 48)
      mixed = b ^ c ^ d, index = (3 * step + 5) % 16;
    else
      mixed = c ^ (b | ~d), index = 7 * step % 16;
    memcpy(&word, block + 4 * index, 4);
    uint32_t next = b + left(a + mixed + constant + word, shifts[step / 16][step % 4]);
    a = d, d = c, c = b, b = next;
  }
  state[0] += a, state[1] += b, state[2] += c, state[3] += d;
}

static void reference_md5(const uint8_t *bytes, size_t length, uint8_t digest[16]) {
  size_t padded = (length + 8) / 64 * 64 + 64;
  uint8_t *whole = calloc(1, padded);
  uint32_t state[4] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
  uint64_t bits = (uint64_t)length * 8;
  memcpy(whole, bytes, length);
  whole[length] = 0x80;
  memcpy(whole + padded - 8, &bits, 8);
  for (size_t at = 0; at < padded; at += 64) md5_block(state, whole + at);
  memcpy(digest, state, 16);
  free(whole);
}

static const uint64_t P1 = 0x9E3779B185EBCA87, P2 = 0xC2B2AE3D27D4EB4F, P3 = 0x165667B19E3779F9,
                      P4 = 0x85EBCA77C2B2AE63, P5 = 0x27D4EB2F165667C5;

static uint64_t read64(const uint8_t *bytes) {
  uint64_t value = 0;
  for (int index = 7; index >= 0; index--) value = value << 8 | bytes[index];
  return value;
}

static uint64_t xx_round(uint64_t lane, uint64_t input) {
  return left64(lane + input * P2, 31) * P1;
}

/* doc/xxhash_spec.md of xxHash. */
static uint64_t reference_xxh64(const uint8_t *at, size_t length) {
  uint64_t all = P5, lanes[4] = {P1 + P2, P2, 0, 0 - P1};
  size_t rest = length;
  for (; rest >= 32; rest -= 32)
    for (int lane = 0; lane < 4; lane++, at += 8) lanes[lane] = xx_round(lanes[lane], read64(at));
  if (length >= 32) {
    all = left64(lanes[0], 1) + left64(lanes[1], 7) + left64(lanes[2], 12) + left64(lanes[3], 18);
    for (int lane = 0; lane < 4; lane++) all = (all ^ xx_round(0, lanes[lane])) * P1 + P4;
  }
  all += length;
  for (; rest >= 8; rest -= 8, at += 8) all = left64(all ^ xx_round(0, read64(at)), 27) * P1 + P4;
  if (rest >= 4) {
    uint64_t half = at[0] | (uint64_t)at[1] << 8 | (uint64_t)at[2] << 16 | (uint64_t)at[3] << 24;
    all = left64(all ^ half * P1, 23) * P2 + P3;
    rest -= 4, at += 4;
  }
  for (; rest > 0; rest--, at++) all = left64(all ^ *at * P5, 11) * P1;
  all = (all ^ all >> 33) * P2;
  all = (all ^ all >> 29) * P3;
  return all ^ all >> 32;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  struct md5 md5;
  struct hash hash;
  uint8_t digest[16], expected[16], steps[4];
  begin_input(bytes, length);
  take_into(steps, sizeof steps);
  const uint8_t *content = take_rest(&length);
  md5_init(&md5);
  hash_init(&hash);
  for (size_t at = 0, turn = 0; at < length; turn++) {
    size_t part = steps[turn % 4], left_over = length - at;
    if (part > left_over || (part == 0 && turn % 4 == 3)) part = left_over;
    uint8_t *piece = malloc(part); /* Exact, so that reading beyond it shows. */
    if (part > 0) memcpy(piece, content + at, part);
    md5_update(&md5, piece, part);
    hash_update(&hash, piece, part);
    free(piece);
    at += part;
  }
  md5_digest(&md5, digest);
  reference_md5(content, length, expected);
  CHECK(memcmp(digest, expected, 16) == 0);
  CHECK(hash_digest(&hash) == reference_xxh64(content, length));
  CHECK(hash_of(content, length) == reference_xxh64(content, length));
  return 0;
}
