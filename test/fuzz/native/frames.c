/* See frames.h. */
#include "frames.h"

#include <stdlib.h>
#include <string.h>

uint32_t reference_crc(const uint8_t *bytes, size_t length) {
  uint32_t crc = 0xffffffffu;
  for (size_t index = 0; index < length; index++) {
    crc ^= bytes[index];
    for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
  }
  return ~crc;
}

/*
 * Each run of bytes that are not zero begins with its length and one; 254 of them stand for no
 * zero.
 */
static size_t stuff(const uint8_t *bytes, size_t length, uint8_t *into) {
  size_t at = 0, code = at++;
  into[code] = 1;
  for (size_t index = 0; index < length; index++) {
    if (bytes[index] != 0) {
      into[at++] = bytes[index];
      into[code]++;
    }
    if (bytes[index] == 0 || (into[code] == 0xff && index + 1 < length)) {
      code = at++;
      into[code] = 1;
    }
  }
  into[at++] = 0;
  return at;
}

size_t reference_frame(const uint8_t *content, size_t length, uint8_t *into) {
  uint8_t *whole = malloc(length + 4);
  uint32_t crc = reference_crc(content, length);
  memcpy(whole, content, length);
  for (int index = 0; index < 4; index++)
    whole[length + (size_t)index] = (uint8_t)(crc >> 8 * index);
  size_t stuffed = stuff(whole, length + 4, into);
  free(whole);
  return stuffed;
}

size_t reference_unstuff(const uint8_t *stuffed, size_t length, uint8_t *into) {
  size_t written = 0;
  for (size_t at = 0; at < length;) {
    size_t code = stuffed[at++];
    if (code == 0 || code - 1 > length - at) return SIZE_MAX;
    for (size_t left = code - 1; left > 0; left--) into[written++] = stuffed[at++];
    if (code < 255 && at < length) into[written++] = 0;
  }
  return written;
}
