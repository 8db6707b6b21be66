#define _GNU_SOURCE
#include "streams.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "wire.h"

enum {
  PIECE_BYTES = 64 * KIB,
  TERMINAL_BYTES = 128 * KIB, /* More than the kernel buffers of a terminal's output. */
};

/*
 * A pipe that carries one output of a process. It outlives the process when a child still holds the
 * other end.
 */
struct source {
  struct watch watch;      /* First, so that a watch can be cast to its source. */
  struct streams *streams; /* NULL: the process has been left or forgotten. */
  int stream;
  bool paused;   /* The ring is full of unacknowledged output. */
  uint64_t owed; /* After the shell's end: upper bound of its output that has not been read yet. */
};

static void drop_source(struct source *source) {
  if (source->streams != NULL) source->streams->outputs[source->stream - 1] = NULL;
  watch_close(&source->watch);
  free(source);
}

static void pause_source(struct source *source) {
  watch_not(&source->watch);
  source->paused = true;
}

/* Keeps a child of a process that was left from blocking on its pipe or dying of SIGPIPE. */
static void discard_output(struct source *source) {
  static uint8_t discarded[4 * KIB];
  ssize_t got = read(source->watch.fd, discarded, sizeof discarded);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) drop_source(source);
}

/* Reads one piece. The source may have been freed when this returns. */
static void read_source(struct source *source) {
  struct streams *streams = source->streams;
  if (streams == NULL) return discard_output(source);
  size_t space;
  uint64_t keep = streams->is_retained ? streams->acked : streams->ring.end;
  uint8_t *into = ring_space(&streams->ring, keep, &space);
  if (into == NULL) return pause_source(source);
  ssize_t got = read(source->watch.fd, into, space < PIECE_BYTES ? space : PIECE_BYTES);
  if (got > 0) {
    ring_fill(&streams->ring, (size_t)got, source->stream);
    source->owed -= source->owed < (uint64_t)got ? source->owed : (uint64_t)got;
  } else if (got < 0 && errno == EAGAIN) {
    source->owed = 0;
  } else if (got == 0 || errno != EINTR) {
    drop_source(source); /* End of file; a terminal reports EIO when its last process has gone. */
  }
}

static void source_ready(struct watch *watch) { read_source((struct source *)watch); }

static int open_source(struct streams *streams, int stream, int fd) {
  struct source *source = calloc(1, sizeof *source);
  if (source == NULL) {
    close(fd);
    return -1;
  }
  source->watch = (struct watch){.fd = fd, .ready = source_ready};
  source->streams = streams;
  source->stream = stream;
  streams->outputs[stream - 1] = source;
  return watch_for(&source->watch, EPOLLIN);
}

static void stop_input(struct streams *streams) {
  watch_close(&streams->input);
  free(streams->stdin_bytes);
  streams->stdin_bytes = NULL;
  streams->stdin_from = streams->stdin_length = 0;
  streams->stdin_open = streams->close_stdin_due = false;
}

/* Writes what the process takes. Bytes for a process that reads no more count as taken. */
static void write_input(struct streams *streams) {
  while (streams->stdin_length > 0) {
    const uint8_t *from = streams->stdin_bytes + streams->stdin_from;
    ssize_t wrote = write(streams->input.fd, from, streams->stdin_length);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == EAGAIN) break;
    streams->taken_due = true;
    if (wrote < 0) return stop_input(streams);
    streams->stdin_from += (size_t)wrote;
    streams->stdin_length -= (size_t)wrote;
  }
  if (streams->stdin_length > 0) {
    watch_for(&streams->input, EPOLLOUT);
    return;
  }
  if (streams->close_stdin_due) return stop_input(streams);
  watch_not(&streams->input);
  free(streams->stdin_bytes);
  streams->stdin_bytes = NULL;
  streams->stdin_from = 0;
}

static void input_ready(struct watch *watch) {
  write_input((struct streams *)((char *)watch - offsetof(struct streams, input)));
}

int streams_open(struct streams *streams, const struct spawned *spawned) {
  streams->input = (struct watch){.fd = spawned->input, .ready = input_ready};
  streams->stdin_open = spawned->input >= 0;
  int failed = open_source(streams, 1, spawned->outputs[0]);
  if (spawned->outputs[1] >= 0) failed |= open_source(streams, 2, spawned->outputs[1]);
  return failed;
}

void streams_leave(struct streams *streams) {
  stop_input(streams);
  for (int index = 0; index < 2; index++) {
    struct source *source = streams->outputs[index];
    if (source == NULL) continue;
    source->streams = NULL;
    streams->outputs[index] = NULL;
    if (source->paused) watch_for(&source->watch, EPOLLIN);
    source->paused = false;
  }
}

void streams_close(struct streams *streams) {
  streams_leave(streams);
  ring_free(&streams->ring);
}

static void resume_outputs(struct streams *streams) {
  for (int index = 0; index < 2; index++) {
    struct source *source = streams->outputs[index];
    if (source == NULL || !source->paused) continue;
    source->paused = false;
    watch_for(&source->watch, EPOLLIN);
  }
}

uint64_t streams_follow(struct streams *streams, uint64_t offset) {
  if (offset < streams->ring.oldest) offset = streams->ring.oldest;
  streams->acked = streams->sent = offset;
  streams->frames = 0;
  streams->is_retained = streams->is_followed = true;
  resume_outputs(streams);
  return offset;
}

void streams_unfollow(struct streams *streams) {
  streams->is_retained = streams->is_followed = false;
  resume_outputs(streams);
}

void streams_ack(struct streams *streams, uint64_t offset) {
  if (!streams->is_followed || offset <= streams->acked || offset > streams->sent) return;
  streams->acked = offset;
  if (offset == streams->sent) streams->frames = 0;
  resume_outputs(streams);
}

const uint8_t *streams_next_output(struct streams *streams, uint64_t *offset, size_t *length,
                                   int *stream) {
  if (!streams->is_followed || streams->sent >= streams->ring.end) return NULL;
  if (streams->sent - streams->acked >= LIMIT_OUTPUT_WINDOW) return NULL;
  if (streams->frames >= LIMIT_OUTPUT_FRAMES) return NULL;
  *length = (size_t)(LIMIT_OUTPUT_WINDOW - (streams->sent - streams->acked));
  if (*length > LIMIT_OUTPUT_MAX) *length = LIMIT_OUTPUT_MAX;
  const uint8_t *bytes = ring_run(&streams->ring, streams->sent, length, stream);
  *offset = streams->sent;
  if (bytes == NULL) return NULL;
  streams->sent += *length;
  streams->frames++;
  return bytes;
}

static size_t append_input(struct streams *streams, const uint8_t *bytes, size_t length) {
  if (streams->stdin_bytes == NULL) streams->stdin_bytes = malloc(LIMIT_INPUT_WINDOW);
  if (streams->stdin_bytes == NULL) return 0;
  memmove(streams->stdin_bytes, streams->stdin_bytes + streams->stdin_from, streams->stdin_length);
  streams->stdin_from = 0;
  size_t space = LIMIT_INPUT_WINDOW - streams->stdin_length;
  if (length > space)
    length = space; /* Beyond the window; `list` shows that it was not received. */
  memcpy(streams->stdin_bytes + streams->stdin_length, bytes, length);
  streams->stdin_length += length;
  return length;
}

void streams_write(struct streams *streams, uint64_t offset, const uint8_t *bytes, size_t length) {
  if (offset > streams->stdin_received) return; /* A gap: input before this was lost. */
  uint64_t known = streams->stdin_received - offset;
  if (known >= length) return;
  bytes += known;
  length -= (size_t)known;
  if (!streams->stdin_open || streams->close_stdin_due) { /* Behind the end: it counts as taken. */
    streams->stdin_received += length;
    streams->taken_due = true;
    return;
  }
  streams->stdin_received += append_input(streams, bytes, length);
  write_input(streams);
}

bool streams_close_stdin(struct streams *streams, uint64_t offset) {
  if (!streams->stdin_open || streams->is_terminal) return true;
  if (offset > streams->stdin_received) return false;
  streams->close_stdin_due = true;
  if (streams->stdin_length == 0) stop_input(streams);
  return true;
}

int streams_resize(struct streams *streams, uint16_t columns, uint16_t rows) {
  if (streams->outputs[0] == NULL) return 0;
  return set_terminal_size(streams->outputs[0]->watch.fd, columns, rows);
}

uint64_t streams_taken(const struct streams *streams) {
  return streams->stdin_received - streams->stdin_length;
}

void streams_note_owed(struct streams *streams) {
  for (int index = 0; index < 2; index++) {
    struct source *source = streams->outputs[index];
    if (source == NULL) continue;
    int capacity = streams->is_terminal ? TERMINAL_BYTES : fcntl(source->watch.fd, F_GETPIPE_SZ);
    source->owed = capacity < 0 ? TERMINAL_BYTES : (uint64_t)capacity;
  }
}

void streams_read_owed(struct streams *streams) {
  for (int index = 0; index < 2; index++) {
    struct source *source = streams->outputs[index];
    if (source != NULL && !source->paused && source->owed > 0) read_source(source);
  }
}

bool streams_are_drained(const struct streams *streams, bool is_late) {
  for (int index = 0; index < 2; index++) {
    const struct source *source = streams->outputs[index];
    if (source != NULL && (!is_late || source->owed > 0)) return false;
  }
  return true;
}

bool streams_wait_for_host(const struct streams *streams) {
  for (int index = 0; index < 2; index++) {
    const struct source *source = streams->outputs[index];
    if (source != NULL && source->paused && source->owed > 0) return true;
  }
  return false;
}
