/* Stuffing, checksums and fields of frames, whatever they mean. */
#include "wire.h"

#include <string.h>

enum { RUN_MAX = 254, SLICES = 8 };

/* CRC-32 as zlib computes it, eight bytes at a time. */
static uint32_t crc_table[SLICES][256];

static void fill_crc_table(void) {
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; bit++) value = (value >> 1) ^ (value & 1 ? 0xedb88320u : 0);
    crc_table[0][byte] = value;
  }
  for (int slice = 1; slice < SLICES; slice++)
    for (int byte = 0; byte < 256; byte++) {
      uint32_t before = crc_table[slice - 1][byte];
      crc_table[slice][byte] = (before >> 8) ^ crc_table[0][before & 0xff];
    }
}

static uint32_t checksum(const uint8_t *bytes, size_t length) {
  if (crc_table[0][1] == 0) fill_crc_table();
  uint32_t crc = 0xffffffffu;
  for (; length >= SLICES; bytes += SLICES, length -= SLICES) {
    uint32_t next = 0;
    for (int slice = 0; slice < SLICES; slice++) {
      uint8_t byte = bytes[slice];
      if (slice < 4) byte ^= (uint8_t)(crc >> (8 * slice));
      next ^= crc_table[SLICES - 1 - slice][byte];
    }
    crc = next;
  }
  for (; length > 0; bytes++, length--) crc = (crc >> 8) ^ crc_table[0][(crc ^ *bytes) & 0xff];
  return ~crc;
}

static uint64_t number_at(const uint8_t *at, size_t bytes) {
  uint64_t value = 0;
  for (size_t index = 0; index < bytes; index++) value |= (uint64_t)at[index] << (8 * index);
  return value;
}

const uint8_t *take_bytes(struct reader *reader, size_t length) {
  if (length > reader->left) {
    reader->valid = false;
    reader->left = 0;
    return NULL;
  }
  const uint8_t *taken = reader->at;
  reader->at += length;
  reader->left -= length;
  return taken;
}

uint64_t take_number(struct reader *reader, size_t bytes) {
  const uint8_t *at = take_bytes(reader, bytes);
  return at == NULL ? 0 : number_at(at, bytes);
}

void take_text(struct reader *reader, size_t length_bytes, char *into, size_t max) {
  size_t length = take_number(reader, length_bytes);
  const uint8_t *bytes = take_bytes(reader, length);
  into[0] = '\0';
  if (bytes == NULL) return;
  if (length > max || memchr(bytes, '\0', length) != NULL) {
    reader->valid = false;
    return;
  }
  memcpy(into, bytes, length);
  into[length] = '\0';
}

bool took_all(const struct reader *reader) { return reader->valid && reader->left == 0; }

void begin_frame(struct writer *writer, uint8_t kind, uint32_t request) {
  writer->length = 0;
  put_number(writer, kind, 1);
  put_number(writer, request, 4);
}

void put_number(struct writer *writer, uint64_t value, size_t bytes) {
  for (size_t index = 0; index < bytes; index++)
    writer->bytes[writer->length++] = (uint8_t)(value >> (8 * index));
}

void put_bytes(struct writer *writer, const void *bytes, size_t length) {
  memcpy(writer->bytes + writer->length, bytes, length);
  writer->length += length;
}

size_t finish_frame(struct writer *writer, uint8_t *into) {
  put_number(writer, checksum(writer->bytes, writer->length), CHECKSUM_BYTES);
  const uint8_t *from = writer->bytes, *end = writer->bytes + writer->length;
  uint8_t *to = into;
  for (;;) {
    size_t limit = (size_t)(end - from) < RUN_MAX ? (size_t)(end - from) : RUN_MAX;
    const uint8_t *zero = limit == 0 ? NULL : memchr(from, 0, limit);
    size_t run = zero == NULL ? limit : (size_t)(zero - from);
    *to++ = (uint8_t)(run + 1);
    memcpy(to, from, run);
    to += run;
    from += run;
    if (from == end) break;
    if (run < RUN_MAX) from++; /* A full run stands for no zero. */
  }
  *to++ = 0;
  return (size_t)(to - into);
}

size_t open_frame(uint8_t *stuffed, size_t length) {
  size_t written = 0;
  for (size_t at = 0; at < length;) {
    size_t code = stuffed[at];
    if (code == 0 || at + code > length) return 0;
    memmove(stuffed + written, stuffed + at + 1, code - 1);
    written += code - 1;
    at += code;
    if (code <= RUN_MAX && at < length) stuffed[written++] = 0;
  }
  if (written < HEAD_BYTES + CHECKSUM_BYTES || written > LIMIT_FRAME_MAX) return 0;
  size_t end = written - CHECKSUM_BYTES;
  return checksum(stuffed, end) == number_at(stuffed + end, CHECKSUM_BYTES) ? end : 0;
}
