/*
 * Logs what a machine prints, in two files of bounded size. A guest that floods its console neither
 * fills the host's disk nor keeps it busy: output beyond the rate is read and left out. The machine
 * never waits for the log.
 */
#define _GNU_SOURCE
#include "shim-log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 512 * 1024, BURST_BYTES = 1024 * 1024, BYTES_PER_S = 64 * 1024 };

#define NAME "console.log"
#define FORMER "console.log.1"

struct log {
  int directory, file;
  size_t file_bytes;
  size_t credit, left_out;
  time_t credited_at;
};

static time_t now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

static void open_file(struct log *log) {
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC;
  if (log->file >= 0) close(log->file);
  log->file = openat(log->directory, NAME, flags, 0600);
  log->file_bytes = 0;
}

static void append(struct log *log, const char *bytes, size_t length) {
  if (log->file_bytes + length > FILE_BYTES_MAX) {
    renameat(log->directory, NAME, log->directory, FORMER);
    open_file(log);
  }
  while (length > 0) {
    ssize_t written = write(log->file, bytes, length);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return; /* The disk is full: losing log lines is the least harm. */
    bytes += written;
    length -= (size_t)written;
    log->file_bytes += (size_t)written;
  }
}

static void earn_credit(struct log *log) {
  time_t now = now_s();
  if (now == log->credited_at) return;
  size_t earned = now - log->credited_at > BURST_BYTES / BYTES_PER_S
                      ? BURST_BYTES
                      : (size_t)(now - log->credited_at) * BYTES_PER_S;
  log->credit = log->credit + earned > BURST_BYTES ? BURST_BYTES : log->credit + earned;
  log->credited_at = now;
}

static void tell_left_out(struct log *log) {
  char text[64];
  if (log->left_out == 0) return;
  int length = snprintf(text, sizeof text, "\n[%zu bytes left out]\n", log->left_out);
  log->left_out = 0;
  append(log, text, (size_t)length);
}

static void take(struct log *log, const char *bytes, size_t length) {
  earn_credit(log);
  if (length > log->credit) {
    log->left_out += length;
    return;
  }
  tell_left_out(log);
  log->credit -= length;
  append(log, bytes, length);
}

void keep_log(int output, int directory) {
  static char buffer[16 * 1024];
  struct log log = {
      .directory = directory, .file = -1, .credit = BURST_BYTES, .credited_at = now_s()};
  open_file(&log);
  for (;;) {
    ssize_t got = read(output, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    take(&log, buffer, (size_t)got);
  }
  tell_left_out(&log);
  if (log.file >= 0) close(log.file);
}
