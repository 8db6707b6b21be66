/*
 * The input and output of one process: its pipes or terminal, and the ring that keeps its output.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "loop.h"
#include "ring.h"
#include "spawn.h"

struct source;

struct streams {
  struct ring ring;
  struct source *outputs[2]; /* stdout or the terminal, and stderr; NULL once closed. */
  bool is_terminal;
  bool is_retained; /* Unacknowledged output is never dropped: the process waits for the host. */
  bool is_followed; /* Output is sent to the present host. */
  uint64_t acked;   /* The host has dealt with everything before this offset; */
  uint64_t sent;    /* it was sent everything before this one. */
  uint32_t frames;  /* Sent since the host had last dealt with all of them. */

  struct watch input;
  uint8_t *stdin_bytes; /* Received and not yet written to the process; LIMIT_INPUT_WINDOW long. */
  size_t stdin_from, stdin_length;
  uint64_t stdin_received;
  bool stdin_open, close_stdin_due;
  bool taken_due; /* The process took input that the host has not been told of. */
};

/*
 * Takes over the descriptors of the process. 0, or -1: `streams_close` then closes what was opened.
 */
int streams_open(struct streams *streams, const struct spawned *spawned);
/* Frees everything. A child of the process that still writes gets SIGPIPE. */
void streams_close(struct streams *streams);
/* Ends the output here; what children of the process still write is read and discarded. */
void streams_leave(struct streams *streams);

/* Sends output from the offset on, or from the oldest byte kept; returns where it begins. */
uint64_t streams_follow(struct streams *streams, uint64_t offset);
void streams_unfollow(struct streams *streams);
void streams_ack(struct streams *streams, uint64_t offset);
/*
 * The next bytes to send, of one stream and at most `LIMIT_OUTPUT_MAX`; NULL when there are none.
 */
const uint8_t *streams_next_output(struct streams *streams, uint64_t *offset, size_t *length,
                                   int *stream);

void streams_write(struct streams *streams, uint64_t offset, const uint8_t *bytes, size_t length);
/* Closes stdin after the bytes before the offset; false when some of those are missing. */
bool streams_close_stdin(struct streams *streams, uint64_t offset);
/* 0, or an error number; 0 as well when the output is closed. */
int streams_resize(struct streams *streams, uint16_t columns, uint16_t rows);
/* How much input the process has taken. */
uint64_t streams_taken(const struct streams *streams);

/* The shell has ended: what its pipes hold now must still be read. */
void streams_note_owed(struct streams *streams);
/* Reads on what is owed, one piece of each output. */
void streams_read_owed(struct streams *streams);
/* Both outputs are closed or, once it is late, nothing more is owed. */
bool streams_are_drained(const struct streams *streams, bool is_late);
/* The ring is full; what is owed stays in the pipe until the host acknowledges output. */
bool streams_wait_for_host(const struct streams *streams);
