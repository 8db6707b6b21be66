/*
 * CRCs by slicing by eight (Kounavis and Berry 2005), and their combination by multiplication of
 * polynomials over GF(2), as zlib's crc32_combine does it. Bit 0 of a register is the highest
 * power.
 */
#include "crc.h"

#include <pthread.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "written for little-endian hosts"
#endif

enum { KINDS = 3, SLICES = 8, SQUARES = 64 };

struct crc_kind {
  unsigned bits;
  uint64_t polynomial; /* Reflected. */
  /* CRC contribution of a byte that `slice` more bytes follow. */
  uint64_t slices[SLICES][256];
  /* x to the power of 2^n. */
  uint64_t squares[SQUARES];
};

static struct crc_kind kinds[KINDS] = {
    {.bits = 32, .polynomial = UINT64_C(0xEDB88320)},         /* RFC 1952, section 8. */
    {.bits = 32, .polynomial = UINT64_C(0x82F63B78)},         /* RFC 3720, section 12.1. */
    {.bits = 64, .polynomial = UINT64_C(0x9A6C9329AC4BC9B5)}, /* NVM Command Set 1.0, 5.2.1.3.4. */
};

static uint64_t mask_of(const struct crc_kind *kind) {
  return kind->bits == 64 ? UINT64_MAX : (UINT64_C(1) << kind->bits) - 1;
}

static uint64_t times_x(const struct crc_kind *kind, uint64_t value) {
  return (value >> 1) ^ ((value & 1) != 0 ? kind->polynomial : 0);
}

static uint64_t multiply(const struct crc_kind *kind, uint64_t a, uint64_t b) {
  uint64_t product = 0;
  for (uint64_t bit = UINT64_C(1) << (kind->bits - 1); a != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    a &= ~bit;
    b = times_x(kind, b);
  }
  return product;
}

static void fill_tables(void) {
  for (int i = 0; i < KINDS; i++) {
    struct crc_kind *kind = &kinds[i];
    for (unsigned byte = 0; byte < 256; byte++) {
      uint64_t value = byte;
      for (int bit = 0; bit < 8; bit++) value = times_x(kind, value);
      kind->slices[0][byte] = value;
    }
    for (int slice = 1; slice < SLICES; slice++) {
      for (unsigned byte = 0; byte < 256; byte++) {
        uint64_t before = kind->slices[slice - 1][byte];
        kind->slices[slice][byte] = (before >> 8) ^ kind->slices[0][before & 0xff];
      }
    }
    kind->squares[0] = UINT64_C(1) << (kind->bits - 2);
    for (int n = 1; n < SQUARES; n++)
      kind->squares[n] = multiply(kind, kind->squares[n - 1], kind->squares[n - 1]);
  }
}

/* `kind` is one that crc_init has accepted. */
static struct crc_kind *kind_of(uint32_t kind) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, fill_tables);
  return &kinds[kind];
}

bool crc_init(struct crc *crc, uint32_t kind) {
  if (kind >= KINDS) return false;
  *crc = (struct crc){.value = mask_of(kind_of(kind)), .kind = kind};
  return true;
}

void crc_update(struct crc *crc, const uint8_t *bytes, size_t length) {
  const struct crc_kind *kind = kind_of(crc->kind);
  const uint64_t(*slices)[256] = kind->slices;
  uint64_t value = crc->value;
  for (; length >= 8; bytes += 8, length -= 8) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    word ^= value;
    value = slices[7][word & 0xff] ^ slices[6][word >> 8 & 0xff] ^ slices[5][word >> 16 & 0xff] ^
            slices[4][word >> 24 & 0xff] ^ slices[3][word >> 32 & 0xff] ^
            slices[2][word >> 40 & 0xff] ^ slices[1][word >> 48 & 0xff] ^ slices[0][word >> 56];
  }
  for (; length > 0; bytes++, length--) value = (value >> 8) ^ slices[0][(value ^ *bytes) & 0xff];
  crc->value = value;
}

uint64_t crc_digest(const struct crc *crc) { return crc->value ^ mask_of(kind_of(crc->kind)); }

uint64_t crc_combine(uint32_t kind_index, uint64_t first, uint64_t second, uint64_t second_bytes) {
  const struct crc_kind *kind = kind_of(kind_index);
  uint64_t power = UINT64_C(1) << (kind->bits - 1); /* x to the power of 0. */
  /* A byte has 2^3 bits. */
  for (int n = 3; second_bytes != 0 && n < SQUARES; second_bytes >>= 1, n++)
    if ((second_bytes & 1) != 0) power = multiply(kind, kind->squares[n], power);
  return multiply(kind, power, first) ^ second;
}
