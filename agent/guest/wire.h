/*
 * The frames of the channel to the host. guest-protocol.ts (agent/machines/) defines them too; a
 * test compares the numbers.
 *
 * A frame is u8 kind, u32 request, the fields of the kind, u32 CRC-32 of all before, everything
 * little-endian. It travels with its zeros stuffed (COBS) and a zero after it, so that a zero ends
 * every frame and occurs nowhere else.
 *
 * The host may disappear at any byte, and another may connect while bytes of the former are still
 * in transit both ways. A new host sends a zero, which ends any partial frame, and a hello with a
 * random epoch. The guest drops what it had not sent, ends a frame that it had partly sent with a
 * zero, and answers with that epoch; the host ignores everything before. Within an epoch nothing is
 * lost. Across epochs, offsets prevent loss: output stays in its ring until it is acknowledged, and
 * `list` says how much input was received.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KIB 1024
#define MIB (1024 * KIB)

enum {
  PROTOCOL_VERSION = 4,

  LIMIT_PAYLOAD_MAX = 64 * KIB,
  LIMIT_FRAME_MAX = 64 * KIB + 128,
  LIMIT_PROCESSES_MAX = 1000,
  LIMIT_COMMAND_MAX = 1 * MIB,
  LIMIT_ENVIRONMENT_MAX = 256 * KIB,
  LIMIT_ENVIRONMENT_ENTRIES_MAX = 4096,
  LIMIT_DIRECTORY_MAX = 4095,
  LIMIT_USER_MAX = 255,
  LIMIT_RING_MIN = 1 * MIB,
  LIMIT_RING_MAX = 4 * MIB,
  LIMIT_OUTPUT_MAX = 16 * KIB,
  LIMIT_OUTPUT_WINDOW = 128 * KIB,
  LIMIT_OUTPUT_FRAMES = 1024,
  LIMIT_INPUT_WINDOW = 64 * KIB,
  LIMIT_ENTROPY_MIN = 32,
  LIMIT_ENTROPY_MAX = 512,
  LIMIT_HOSTNAME_MAX = 63,
  LIMIT_EXPORT_MAX = 63,
  LIMIT_RECORDS_PER_PAGE_MAX = 256,
  LIMIT_FREEZE_MS_MAX = 60000,
  LIMIT_TRIM_MS_MAX = 10000,
  LIMIT_SHUTDOWN_MS_MAX = 60000,
  LIMIT_HOOK_MAX = 8 * KIB,
  LIMIT_HOOK_MS_MAX = 10000,
  LIMIT_RETAIN_MS = 15 * 60 * 1000,
  LIMIT_HOST_SILENCE_MS = 30000,
  LIMIT_FILE_OPERATIONS_MAX = 48,
  LIMIT_FILE_RING = 512 * KIB,

  KIND_HELLO = 1,
  KIND_PING = 2,
  KIND_CONFIGURE = 3,
  KIND_STAGE = 4,
  KIND_START = 5,
  KIND_STDIN = 6,
  KIND_CLOSE_STDIN = 7,
  KIND_RESIZE = 8,
  KIND_SIGNAL = 9,
  KIND_FOLLOW = 10,
  KIND_UNFOLLOW = 11,
  KIND_ACK = 12,
  KIND_KILL = 13,
  KIND_FORGET = 14,
  KIND_LIST = 15,
  KIND_STATS = 16,
  KIND_FREEZE = 17,
  KIND_THAW = 18,
  KIND_SHUTDOWN = 19,
  KIND_MOUNT = 20,
  KIND_FILES = 22,
  KIND_TRIM = 26,
  KIND_READ_CLOCK = 23,
  KIND_SET_CLOCK = 24,
  KIND_HOOK = 25,
  KIND_RECOVER_LOCKS = 27,

  KIND_WELCOME = 64,
  KIND_DONE = 65,
  KIND_FAILED = 66,
  KIND_STARTED = 67,
  KIND_FOLLOWED = 68,
  KIND_RECORDS = 69,
  KIND_FIGURES = 70,
  KIND_TIME = 71,
  KIND_HOOKED = 72,
  KIND_OUTPUT = 80,
  KIND_EXITED = 81,
  KIND_TAKEN = 82,
  KIND_POWERING_OFF = 83,
  KIND_EVICTED = 84,

  FLAG_TERMINAL = 1,
  FLAG_STDIN = 2,
  FLAG_FOLLOWED = 4,
  FLAG_EXITED = 8,
  FLAG_SIGNALLED = 16,
  FLAG_SESSION = 32,
  FLAG_KILLED = 64,
  FLAG_TIMED_OUT = 128,

  FAILURE_INVALID = 1,
  FAILURE_UNKNOWN_PROCESS = 2,
  FAILURE_PROCESS_EXISTS = 3,
  FAILURE_TOO_MANY_PROCESSES = 4,
  FAILURE_NOT_CONFIGURED = 5,
  FAILURE_FROZEN = 6,
  FAILURE_BUSY = 7,
  FAILURE_SYSTEM = 8,
  FAILURE_TIMEOUT = 9,
  FAILURE_UNSUPPORTED = 10,

  ID_BYTES = 16,
  HEAD_BYTES = 5,
  CHECKSUM_BYTES = 4,
  STUFFED_MAX = LIMIT_FRAME_MAX + LIMIT_FRAME_MAX / 254 + 1,
};

/* Reads the fields of a frame. A read beyond the end returns zeros and clears `valid`. */
struct reader {
  const uint8_t *at;
  size_t left;
  bool valid;
};

const uint8_t *take_bytes(struct reader *reader, size_t length);
uint64_t take_number(struct reader *reader, size_t bytes);
/* A length, and a text of at most `max` bytes without NUL, which `into` gets with a NUL. */
void take_text(struct reader *reader, size_t length_bytes, char *into, size_t max);
/* True when every field was present and nothing is left over. */
bool took_all(const struct reader *reader);

/* Appends fields to a frame. Callers bound what they append, so it always fits. */
struct writer {
  uint8_t bytes[LIMIT_FRAME_MAX];
  size_t length;
};

void begin_frame(struct writer *writer, uint8_t kind, uint32_t request);
void put_number(struct writer *writer, uint64_t value, size_t bytes);
void put_bytes(struct writer *writer, const void *bytes, size_t length);
/* Appends the checksum, and writes the stuffed frame with its zero; returns the length of that. */
size_t finish_frame(struct writer *writer, uint8_t *into);

/* Unstuffs in place. The length without the checksum, or 0 when it is not a valid frame. */
size_t open_frame(uint8_t *stuffed, size_t length);
