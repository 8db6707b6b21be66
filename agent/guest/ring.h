/*
 * The last output of one process, at most LIMIT_RING_MAX bytes. A bit per byte says which stream it
 * came from, so that both streams have one counter and keep their order whatever their pieces are.
 * Memory is taken as the ring fills.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct ring {
  uint8_t *bytes;
  uint8_t *streams;
  uint64_t oldest; /* Offset of the first byte that is still there. */
  uint64_t end;    /* How many bytes the process has put out. */
  uint32_t capacity;
  uint32_t reserved; /* Of the capacity, what counts against the budget of all rings. */
};

/* All rings together take at most so much, beside a first step that each may always take. */
void set_ring_budget(uint64_t bytes);
uint64_t ring_bytes_reserved(void);

/* Room for new bytes when nothing from `keep` on may go; NULL and 0 when there is none. */
uint8_t *ring_space(struct ring *ring, uint64_t keep, size_t *length);
/* `length` bytes of the room were filled from the stream 1 or 2. */
void ring_fill(struct ring *ring, size_t length, int stream);
/* Bytes from the offset on that lie together and came from one stream. */
const uint8_t *ring_run(const struct ring *ring, uint64_t offset, size_t *length, int *stream);
void ring_free(struct ring *ring);
