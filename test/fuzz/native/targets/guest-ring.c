/* The ring of a process's output against a model that keeps everything. */
#include <string.h>
#include <sys/mman.h>

#include "../../../../agent/guest/ring.h"
#include "../../../../agent/guest/wire.h"
#include "../fuzz.h"

enum { MODEL_BYTES = 12 * MIB, OPERATIONS_MAX = 200 };

struct model {
  struct ring ring;
  uint64_t keep;
  uint8_t bytes[MODEL_BYTES], streams[MODEL_BYTES];
};

static struct model models[2];

/* The ring's memory, of the allocator: so that the sanitizer knows its ends. */
void *fake_mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
  (void)at, (void)protection, (void)flags, (void)fd, (void)offset;
  if (call_fails()) return MAP_FAILED;
  return malloc(length);
}

int fake_munmap(void *at, size_t length) {
  (void)length;
  free(at);
  return 0;
}

int fake_madvise(void *at, size_t length, int advice) {
  return (void)at, (void)length, (void)advice, 0;
}

static void fill(struct model *model) {
  struct ring *ring = &model->ring;
  size_t room, wanted = take_u32() % (256 * KIB);
  int stream = 1 + take_u8() % 2;
  uint8_t *into = ring_space(ring, model->keep, &room);
  CHECK((into == NULL) == (room == 0));
  if (wanted > room) wanted = room;
  if (into == NULL || wanted == 0 || ring->end + wanted > MODEL_BYTES) return;
  memset(into, (int)(ring->end * 7 + (unsigned)stream), wanted);
  memcpy(model->bytes + ring->end, into, wanted);
  memset(model->streams + ring->end, stream, wanted);
  ring_fill(ring, wanted, stream);
  CHECK(ring->oldest <= model->keep);
}

static void compare_run(const struct model *model, uint64_t offset) {
  const struct ring *ring = &model->ring;
  size_t asked = take_u32() % (128 * KIB), length = asked;
  int stream;
  const uint8_t *run = ring_run(ring, offset, &length, &stream);
  bool is_there = offset >= ring->oldest && offset < ring->end && asked > 0;
  CHECK(length <= asked && (length > 0) == is_there);
  if (!is_there) return;
  CHECK(offset + length <= ring->end);
  CHECK(memcmp(run, model->bytes + offset, length) == 0);
  for (size_t index = 0; index < length; index++) CHECK(model->streams[offset + index] == stream);
}

static bool frees_nothing(void) { return false; }

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  begin_input(bytes, length);
  allow_failures(take_u8() & 1);
  set_ring_budget(take_u8() * (uint64_t)64 * KIB, frees_nothing);
  models[0].keep = models[1].keep = 0;
  for (int count = 0; count < OPERATIONS_MAX && !input_is_empty(); count++) {
    uint8_t operation = take_u8();
    struct model *model = &models[operation & 1];
    struct ring *ring = &model->ring;
    switch (operation / 2 % 4) {
      case 0:
      case 1:
        fill(model);
        break;
      case 2:
        compare_run(model, take_u32() % (ring->end + 2));
        break;
      default: /* The host acknowledges, or does not want it kept. */
        model->keep += take_u32() % (ring->end - model->keep + 1);
    }
  }
  ring_free(&models[0].ring);
  ring_free(&models[1].ring);
  CHECK(ring_bytes_reserved() == 0);
  end_input_without_leaks();
  return 0;
}
