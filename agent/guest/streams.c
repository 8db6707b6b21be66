#define _GNU_SOURCE
#include "streams.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
  PIECE_BYTES = 64 * KIB,
  TERMINAL_BYTES = 128 * KIB, /* More than the kernel holds of a terminal's output. */
};

static void drop_source(struct source *source) {
  if (source->process != NULL) source->process->outputs[source->stream - 1] = NULL;
  watch_close(&source->watch);
  free(source);
}

static void pause_source(struct source *source) {
  watch_not(&source->watch);
  source->paused = true;
}

/* A child of a process whose end was reported must neither wait for us nor die of us. */
static void drop_output(struct source *source) {
  static uint8_t nowhere[4 * KIB];
  ssize_t got = read(source->watch.fd, nowhere, sizeof nowhere);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) drop_source(source);
}

void read_source(struct source *source) {
  struct process *process = source->process;
  if (process == NULL) return drop_output(source);
  size_t room;
  uint64_t keep = process->kept ? process->acked : process->ring.end;
  uint8_t *into = ring_room(&process->ring, keep, &room);
  if (into == NULL) return pause_source(source);
  ssize_t got = read(source->watch.fd, into, room < PIECE_BYTES ? room : PIECE_BYTES);
  if (got > 0) {
    ring_fill(&process->ring, (size_t)got, source->stream);
    source->owed -= source->owed < (uint64_t)got ? source->owed : (uint64_t)got;
  } else if (got < 0 && errno == EAGAIN) {
    source->owed = 0;
  } else if (got == 0 || errno != EINTR) {
    drop_source(source); /* The end; a terminal says EIO when the last process has left it. */
  }
}

static void source_ready(struct watch *watch) { read_source((struct source *)watch); }

static int open_source(struct process *process, int stream, int fd) {
  struct source *source = calloc(1, sizeof *source);
  if (source == NULL) {
    close(fd);
    return -1;
  }
  source->watch = (struct watch){.fd = fd, .ready = source_ready};
  source->process = process;
  source->stream = stream;
  process->outputs[stream - 1] = source;
  return watch_for(&source->watch, EPOLLIN);
}

static void stop_input(struct process *process) {
  watch_close(&process->input);
  free(process->stdin_bytes);
  process->stdin_bytes = NULL;
  process->stdin_from = process->stdin_length = 0;
  process->stdin_open = process->close_stdin_due = false;
}

/* Writes what the process takes; nobody reads it any more: it is taken as well, and dropped. */
static void write_input(struct process *process) {
  while (process->stdin_length > 0) {
    const uint8_t *from = process->stdin_bytes + process->stdin_from;
    ssize_t wrote = write(process->input.fd, from, process->stdin_length);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == EAGAIN) break;
    process->taken_due = true;
    if (wrote < 0) return stop_input(process);
    process->stdin_from += (size_t)wrote;
    process->stdin_length -= (size_t)wrote;
  }
  if (process->stdin_length > 0) {
    watch_for(&process->input, EPOLLOUT);
    return;
  }
  if (process->close_stdin_due) return stop_input(process);
  watch_not(&process->input);
  free(process->stdin_bytes);
  process->stdin_bytes = NULL;
  process->stdin_from = 0;
}

static void input_ready(struct watch *watch) {
  write_input((struct process *)((char *)watch - offsetof(struct process, input)));
}

int open_streams(struct process *process, const struct spawned *spawned) {
  process->input = (struct watch){.fd = spawned->input, .ready = input_ready};
  process->stdin_open = spawned->input >= 0;
  int failed = open_source(process, 1, spawned->outputs[0]);
  if (spawned->outputs[1] >= 0) failed |= open_source(process, 2, spawned->outputs[1]);
  return failed;
}

void close_streams(struct process *process) {
  stop_input(process);
  leave_streams(process);
}

void leave_streams(struct process *process) {
  stop_input(process);
  for (int index = 0; index < 2; index++) {
    struct source *source = process->outputs[index];
    if (source == NULL) continue;
    source->process = NULL;
    process->outputs[index] = NULL;
    if (source->paused) watch_for(&source->watch, EPOLLIN);
    source->paused = false;
  }
}

void resume_outputs(struct process *process) {
  for (int index = 0; index < 2; index++) {
    struct source *source = process->outputs[index];
    if (source == NULL || !source->paused) continue;
    source->paused = false;
    watch_for(&source->watch, EPOLLIN);
  }
}

void note_owed(struct process *process) {
  for (int index = 0; index < 2; index++) {
    struct source *source = process->outputs[index];
    if (source == NULL) continue;
    int capacity = process->terminal ? TERMINAL_BYTES : fcntl(source->watch.fd, F_GETPIPE_SZ);
    source->owed = capacity < 0 ? TERMINAL_BYTES : (uint64_t)capacity;
  }
}

static size_t append_input(struct process *process, const uint8_t *bytes, size_t length) {
  if (process->stdin_bytes == NULL) process->stdin_bytes = malloc(LIMIT_INPUT_WINDOW);
  if (process->stdin_bytes == NULL) return 0;
  memmove(process->stdin_bytes, process->stdin_bytes + process->stdin_from, process->stdin_length);
  process->stdin_from = 0;
  size_t room = LIMIT_INPUT_WINDOW - process->stdin_length;
  if (length > room) length = room; /* Beyond its window: the host will find it was not received. */
  memcpy(process->stdin_bytes + process->stdin_length, bytes, length);
  process->stdin_length += length;
  return length;
}

void process_stdin(struct process *process, uint64_t offset, const uint8_t *bytes, size_t length) {
  if (offset > process->stdin_received) return; /* A gap: something went wrong before. */
  uint64_t known = process->stdin_received - offset;
  if (known >= length) return;
  bytes += known;
  length -= (size_t)known;
  if (process->close_stdin_due) return;
  if (!process->stdin_open) {
    process->stdin_received += length;
    process->taken_due = true;
    return;
  }
  process->stdin_received += append_input(process, bytes, length);
  write_input(process);
}

bool process_close_stdin(struct process *process, uint64_t offset) {
  if (!process->stdin_open || process->terminal) return true;
  if (offset > process->stdin_received) return false;
  process->close_stdin_due = true;
  if (process->stdin_length == 0) stop_input(process);
  return true;
}
