#define _DEFAULT_SOURCE
#include "siphash.h"

#include <endian.h>
#include <string.h>

enum { WORD_BYTES = 8, ROUNDS = 2, FINAL_ROUNDS = 4, WIDE_MARK = 0xee, SECOND_MARK = 0xdd };

static uint64_t word_at(const uint8_t *bytes) {
  uint64_t word;
  memcpy(&word, bytes, sizeof word);
  return le64toh(word);
}

static uint64_t rotate(uint64_t word, unsigned bits) { return word << bits | word >> (64 - bits); }

static void mix(uint64_t v[4], int rounds) {
  for (int round = 0; round < rounds; round++) {
    v[0] += v[1];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[0] = rotate(v[0], 32);
    v[2] += v[3];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
  }
}

static void absorb(uint64_t v[4], uint64_t word) {
  v[3] ^= word;
  mix(v, ROUNDS);
  v[0] ^= word;
}

static void put_half(uint64_t v[4], uint8_t *code) {
  mix(v, FINAL_ROUNDS);
  uint64_t half = htole64(v[0] ^ v[1] ^ v[2] ^ v[3]);
  memcpy(code, &half, sizeof half);
}

void siphash(const uint8_t key[SIPHASH_KEY_BYTES], const uint8_t *bytes, size_t length,
             uint8_t code[SIPHASH_BYTES]) {
  uint64_t low = word_at(key), high = word_at(key + WORD_BYTES);
  uint64_t v[4] = {
      low ^ 0x736f6d6570736575ULL,
      high ^ 0x646f72616e646f6dULL ^ WIDE_MARK,
      low ^ 0x6c7967656e657261ULL,
      high ^ 0x7465646279746573ULL,
  };
  size_t whole = length - length % WORD_BYTES;
  uint8_t last[WORD_BYTES] = {0};
  for (size_t at = 0; at < whole; at += WORD_BYTES) absorb(v, word_at(bytes + at));
  memcpy(last, bytes + whole, length - whole);
  last[WORD_BYTES - 1] = (uint8_t)length;
  absorb(v, word_at(last));
  v[2] ^= WIDE_MARK;
  put_half(v, code);
  v[1] ^= SECOND_MARK;
  put_half(v, code + WORD_BYTES);
}
