/*
 * The last output of one process, at most LIMIT_RING_MAX bytes. One bit per byte says which stream
 * it came from, so that both streams share one counter and keep their order. Memory is used as the
 * ring fills.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ring {
  uint8_t *bytes;
  uint8_t *streams;
  uint64_t oldest; /* Offset of the first byte that is kept. */
  uint64_t end;    /* How many bytes the process has written. */
  uint32_t capacity;
  uint32_t capacity_max; /* 0: LIMIT_RING_MAX. */
  uint32_t reserved;     /* The part of the capacity that counts against the budget of all rings. */
};

/*
 * The limit for all rings together, which only rings of less than LIMIT_RING_MIN exceed. Before a
 * ring exceeds it or stops growing, `make_room` may free others: true when it freed one.
 */
void set_ring_budget(uint64_t bytes, bool (*make_room)(void));
uint64_t ring_bytes_reserved(void);

/* Contiguous space for new bytes that overwrites nothing from `keep` on; NULL and 0 for none. */
uint8_t *ring_space(struct ring *ring, uint64_t keep, size_t *length);
/* `length` bytes of the space were filled from stream 1 or 2. */
void ring_fill(struct ring *ring, size_t length, int stream);
/* Bytes from the offset on that are contiguous and came from one stream. */
const uint8_t *ring_run(const struct ring *ring, uint64_t offset, size_t *length, int *stream);
void ring_free(struct ring *ring);
