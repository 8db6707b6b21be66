#define _GNU_SOURCE
#include "hydrate-line.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "hydrate-state.h"

enum { LINE_BYTES = 80 };

static int connection = NONE;
static char unread[1024];
static size_t unread_bytes;

int line_descriptor(void) { return connection; }

void reset_line(void) {
  connection = NONE;
  unread_bytes = 0;
}

static void close_line(void) {
  if (connection != NONE) close(connection);
  reset_line();
}

bool accept_line(void) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  int next = accept4(state->listener, NULL, NULL, SOCK_CLOEXEC);
  if (next < 0) return connection != NONE;
  close_line(); /* Its agent is gone, or will come again. */
  if (getsockopt(next, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != 0) {
    close(next);
    return false;
  }
  connection = next;
  return true;
}

/* A connection that takes no more is of no use: the agent comes again and is told all of it. */
void tell(const char *format, ...) {
  char line[LINE_BYTES];
  va_list values;
  if (connection == NONE) return;
  va_start(values, format);
  int length = vsnprintf(line, sizeof line, format, values);
  va_end(values);
  if (send(connection, line, (size_t)length, MSG_DONTWAIT | MSG_NOSIGNAL) != length)
    shutdown(connection, SHUT_RDWR);
}

void read_lines(void (*obey)(const char *line)) {
  ssize_t got =
      recv(connection, unread + unread_bytes, sizeof unread - 1 - unread_bytes, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return close_line();
  unread_bytes += (size_t)got;
  unread[unread_bytes] = '\0';
  char *from = unread;
  for (char *end; (end = strchr(from, '\n')) != NULL; from = end + 1) {
    *end = '\0';
    obey(from);
  }
  unread_bytes -= (size_t)(from - unread);
  memmove(unread, from, unread_bytes);
  if (unread_bytes == sizeof unread - 1) close_line();
}
