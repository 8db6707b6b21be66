#define _GNU_SOURCE
#include "ring.h"

#include <string.h>
#include <sys/mman.h>

#include "wire.h"

enum {
  STEP = 64 * KIB,
  STREAMS_BYTES = LIMIT_RING_MAX / 8,
  MAPPED = LIMIT_RING_MAX + STREAMS_BYTES,
};

static uint64_t budget;
static bool (*make_room)(void);
static uint64_t reserved_in_all;

void set_ring_budget(uint64_t bytes, bool (*free_another)(void)) {
  budget = bytes;
  make_room = free_another;
}

uint64_t ring_bytes_reserved(void) { return reserved_in_all; }

/* The mapping itself costs nothing: the kernel allocates pages when they are first written. */
static int map(struct ring *ring) {
  uint8_t *bytes = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (bytes == MAP_FAILED) return -1;
  madvise(bytes, MAPPED, MADV_NOHUGEPAGE);
  madvise(bytes, MAPPED, MADV_DONTFORK); /* Keeps forks fast, and output out of other processes. */
  ring->bytes = bytes;
  ring->streams = bytes + LIMIT_RING_MAX;
  ring->capacity = ring->capacity_max == 0 ? LIMIT_RING_MAX : ring->capacity_max;
  return 0;
}

static bool may_grow(const struct ring *ring) {
  while (reserved_in_all + STEP > budget)
    if (!make_room()) return ring->reserved < LIMIT_RING_MIN;
  return true;
}

/*
 * Until the ring first wraps, its capacity can still be cut to what is reserved: every byte is
 * where its offset says.
 */
static void grow(struct ring *ring) {
  if (ring->end < ring->reserved || ring->reserved >= ring->capacity) return;
  if (!may_grow(ring)) {
    ring->capacity = ring->reserved;
    return;
  }
  ring->reserved += STEP;
  reserved_in_all += STEP;
}

uint8_t *ring_space(struct ring *ring, uint64_t keep, size_t *length) {
  *length = 0;
  if (ring->bytes == NULL && map(ring) != 0) return NULL;
  grow(ring);
  if (keep < ring->oldest) keep = ring->oldest;
  uint64_t kept = keep < ring->end ? ring->end - keep : 0;
  uint64_t room = ring->capacity - kept;
  uint64_t position = ring->end % ring->capacity;
  uint64_t together = ring->reserved - position;
  *length = (size_t)(room < together ? room : together);
  return *length == 0 ? NULL : ring->bytes + position;
}

static void mark(uint8_t *bits, size_t from, size_t length, int value) {
  size_t at = from, end = from + length;
  for (; at < end && at % 8 != 0; at++) {
    uint8_t bit = (uint8_t)(1u << (at % 8));
    bits[at / 8] = (uint8_t)(value ? bits[at / 8] | bit : bits[at / 8] & ~bit);
  }
  if (at >= end) return;
  memset(bits + at / 8, value ? 0xff : 0, (end - at) / 8);
  for (at += (end - at) / 8 * 8; at < end; at++) {
    uint8_t bit = (uint8_t)(1u << (at % 8));
    bits[at / 8] = (uint8_t)(value ? bits[at / 8] | bit : bits[at / 8] & ~bit);
  }
}

void ring_fill(struct ring *ring, size_t length, int stream) {
  mark(ring->streams, (size_t)(ring->end % ring->capacity), length, stream == 2);
  ring->end += length;
  if (ring->end - ring->oldest > ring->capacity) ring->oldest = ring->end - ring->capacity;
}

static int bit_at(const uint8_t *bits, size_t at) { return bits[at / 8] >> (at % 8) & 1; }

const uint8_t *ring_run(const struct ring *ring, uint64_t offset, size_t *length, int *stream) {
  *stream = 1;
  if (offset < ring->oldest || offset >= ring->end) {
    *length = 0;
    return NULL;
  }
  size_t from = (size_t)(offset % ring->capacity), end = ring->capacity, at = from;
  if (end - from > ring->end - offset) end = from + (size_t)(ring->end - offset);
  if (end - from > *length) end = from + *length;
  int value = bit_at(ring->streams, from);
  uint8_t whole = value ? 0xff : 0;
  while (at < end && bit_at(ring->streams, at) == value)
    at += at % 8 == 0 && at + 8 <= end && ring->streams[at / 8] == whole ? 8 : 1;
  *length = at - from;
  *stream = value ? 2 : 1;
  return ring->bytes + from;
}

void ring_free(struct ring *ring) {
  if (ring->bytes != NULL) munmap(ring->bytes, MAPPED);
  reserved_in_all -= ring->reserved;
  *ring = (struct ring){0};
}
