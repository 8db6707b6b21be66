/* Frames of the guest agent: whatever comes is read as the reference reads it, and back. */
#include <string.h>

#include "../../../../agent/guest/wire.h"
#include "../frames.h"
#include "../fuzz.h"

/* The reference's result: the length before the checksum, or 0. */
static size_t open_by_reference(const uint8_t *stuffed, size_t length, uint8_t *into) {
  size_t whole = reference_unstuff(stuffed, length, into);
  if (whole == SIZE_MAX || whole < HEAD_BYTES + CHECKSUM_BYTES || whole > LIMIT_FRAME_MAX) return 0;
  uint32_t crc = reference_crc(into, whole - CHECKSUM_BYTES);
  return memcmp(into + whole - CHECKSUM_BYTES, &crc, 4) == 0 ? whole - CHECKSUM_BYTES : 0;
}

static void compare(const uint8_t *stuffed, size_t length) {
  uint8_t *ours = malloc(length + 1), *reference = malloc(length + 1);
  memcpy(ours, stuffed, length);
  size_t opened = open_frame(ours, length);
  CHECK(opened == open_by_reference(stuffed, length, reference));
  CHECK(memcmp(ours, reference, opened) == 0);
  free(ours);
  free(reference);
}

static void take_fields(const uint8_t *content, size_t length) {
  char text[65];
  struct reader reader = {.at = content, .left = length, .valid = true};
  while (reader.valid && reader.left > 0) {
    uint8_t how = take_u8();
    if (how % 3 == 0) take_number(&reader, how % 9);
    if (how % 3 == 1) take_text(&reader, 1 + how % 4, text, sizeof text - 1);
    if (how % 3 == 1) CHECK(strlen(text) < sizeof text);
    if (how % 3 == 2) take_bytes(&reader, how);
    if (input_is_empty()) take_bytes(&reader, reader.left);
  }
  CHECK(!reader.valid || took_all(&reader));
}

/* Content that the guest sends arrives, and is stuffed as the reference does it. */
static void round_trip(const uint8_t *content, size_t length) {
  static struct writer writer;
  static uint8_t ours[STUFFED_MAX + 1], reference[STUFFED_MAX + 1];
  if (length < HEAD_BYTES) return;
  writer.length = 0;
  put_bytes(&writer, content, length);
  size_t stuffed = finish_frame(&writer, ours);
  CHECK(stuffed == reference_frame(content, length, reference));
  CHECK(memcmp(ours, reference, stuffed) == 0);
  CHECK(open_frame(ours, stuffed - 1) == length);
  CHECK(memcmp(ours, content, length) == 0);
  take_fields(content, length);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  static uint8_t large[LIMIT_FRAME_MAX];
  begin_input(bytes, length);
  uint8_t how = take_u8();
  /* Runs as long as frames may be, with the input's bytes at the seams. */
  size_t fill = how & 2 ? take_up_to(LIMIT_FRAME_MAX - CHECKSUM_BYTES - 4096) : 0, left;
  const uint8_t *rest = take_rest(&left);
  if (left > 4096) left = 4096;
  memset(large, how & 4 ? 0 : 0x55, fill);
  memcpy(large + fill, rest, left);
  if (how & 1)
    round_trip(large, fill + left);
  else
    compare(large, fill + left);
  return 0;
}
