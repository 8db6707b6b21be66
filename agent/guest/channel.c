#define _GNU_SOURCE
#include "channel.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "loop.h"

enum {
  OUT_BYTES = 256 * KIB,
  /* Always left free for answers that come later than their request: to `start`, to `freeze`. */
  LATE_ANSWERS_BYTES = 64 * KIB,
  TURNS_AT_ONCE = 4,
  RETRY_MS = 1000, /* A port may lose an edge when its host changes; writing is then tried again. */
  HUNG_UP_MS = 500,
};

static const struct channel_handlers *handlers;

static struct watch channel = {.fd = -1}, listener = {.fd = -1};
static bool port, ended, readable, writable;
static uint64_t retry_at_ms, heard_at_ms;
/* When a port that is hung up counts as left; 0 while it is connected. */
static uint64_t left_at_ms;
static uint64_t silence_ms = LIMIT_HOST_SILENCE_MS;

/* Input that is not handled yet; a zero ends a frame. `skipping`: the present frame is too long. */
static uint8_t in[STUFFED_MAX + 1];
static size_t in_length, in_searched;
static bool skipping;

static uint8_t out[OUT_BYTES];
static size_t out_sent, out_length;

static struct writer frame;
static uint8_t epoch[ID_BYTES], instance[ID_BYTES];
static bool has_epoch;

static void channel_ready(struct watch *watch) {
  (void)watch;
  readable = writable = true;
}

/* Edge-triggered: a port without a host is hung up, which would be reported without end. */
static int use_connection(int fd) {
  channel = (struct watch){.fd = fd, .ready = channel_ready};
  readable = writable = true;
  return watch_for(&channel, EPOLLIN | EPOLLOUT | EPOLLET);
}

static int begin(int fd, const struct channel_handlers *its_handlers) {
  handlers = its_handlers;
  if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) return -1;
  return getrandom(instance, sizeof instance, 0) == sizeof instance ? 0 : -1;
}

int channel_open(int fd, bool is_port, const struct channel_handlers *its_handlers) {
  port = is_port;
  return begin(fd, its_handlers) == 0 ? use_connection(fd) : -1;
}

/* A host that comes back later begins with a hello. */
static void lose_host(void) {
  if (!has_epoch) return;
  has_epoch = false;
  handlers->host_left();
}

/* Work under way belongs to an epoch that is over; the next host says hello. */
static void drop_connection(void) {
  lose_host();
  watch_close(&channel);
  readable = writable = skipping = false;
  in_length = in_searched = out_sent = out_length = 0;
}

/* The newest host is the one that counts: a former one may be gone without its end being seen. */
static void listener_ready(struct watch *watch) {
  int fd = accept4(watch->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return;
  drop_connection();
  if (use_connection(fd) != 0) drop_connection();
}

int channel_listen(int fd, const struct channel_handlers *its_handlers) {
  if (begin(fd, its_handlers) != 0) return -1;
  listener = (struct watch){.fd = fd, .ready = listener_ready};
  return watch_for(&listener, EPOLLIN);
}

/*
 * The host hung up: a port stays open, a listener accepts the next host, a socket ends us. A port's
 * driver learns of its hosts by other messages than the data, and later: it may tell of the end of
 * the former host when the next one has said hello already.
 */
static void hang_up(bool at_end) {
  if (listener.fd >= 0)
    drop_connection();
  else if (!port)
    ended = true;
  else if (at_end && left_at_ms == 0)
    left_at_ms = now_ms() + HUNG_UP_MS;
}

bool channel_is_blocked(void) { return out_sent < out_length; }

static uint64_t tick_writing(void) {
  if (!channel_is_blocked()) return UINT64_MAX;
  if (writable) return 0;
  uint64_t now = now_ms();
  if (now >= retry_at_ms) {
    retry_at_ms = now + RETRY_MS;
    channel_ready(&channel);
  }
  return retry_at_ms;
}

static uint64_t tick_listening(void) {
  uint64_t silent_at_ms = heard_at_ms + silence_ms;
  if (has_epoch && now_ms() >= silent_at_ms) lose_host();
  return has_epoch ? silent_at_ms : UINT64_MAX;
}

bool channel_has_ended(void) { return ended; }

void set_host_silence(uint64_t ms) { silence_ms = ms; }

struct writer *new_frame(uint8_t kind, uint32_t request) {
  begin_frame(&frame, kind, request);
  return &frame;
}

void send_frame(struct writer *writer) {
  if (!has_epoch) return;
  if (out_sent > 0) {
    memmove(out, out + out_sent, out_length - out_sent);
    out_length -= out_sent;
    out_sent = 0;
  }
  out_length += finish_frame(writer, out + out_length);
}

void answer_done(uint32_t request) { send_frame(new_frame(KIND_DONE, request)); }

static void answer_failure(uint32_t request, uint16_t failure, int error, const char *step) {
  struct writer *writer = new_frame(KIND_FAILED, request);
  put_number(writer, failure, 2);
  put_number(writer, (uint64_t)error, 2);
  put_number(writer, strlen(step), 1);
  put_bytes(writer, step, strlen(step));
  send_frame(writer);
}

void answer_failed(uint32_t request, uint16_t failure) { answer_failure(request, failure, 0, ""); }

void answer_error(uint32_t request, const char *step, int error) {
  answer_failure(request, FAILURE_SYSTEM, error, step);
}

/* Ignores a second hello of the same epoch: the host has repeated it, and was answered. */
static void welcome(struct reader *reader) {
  take_number(reader, 2);
  const uint8_t *offered = take_bytes(reader, ID_BYTES);
  if (!took_all(reader) || (has_epoch && memcmp(epoch, offered, ID_BYTES) == 0)) return;
  memcpy(epoch, offered, ID_BYTES);
  has_epoch = true;
  handlers->host_changed();
  out_sent = 0;
  out_length = 1;
  out[0] = 0; /* Ends the frame of the former epoch that was partly sent. */
  struct writer *writer = new_frame(KIND_WELCOME, 0);
  put_number(writer, PROTOCOL_VERSION, 2);
  put_bytes(writer, epoch, ID_BYTES);
  put_bytes(writer, instance, ID_BYTES);
  send_frame(writer);
}

/* Ignores what is not a frame: a former host was cut off in it. The next zero ends it. */
static void handle_frame(uint8_t *stuffed, size_t length) {
  size_t opened = open_frame(stuffed, length);
  if (opened == 0) return;
  struct reader reader = {.at = stuffed, .left = opened, .valid = true};
  uint8_t kind = (uint8_t)take_number(&reader, 1);
  uint32_t request = (uint32_t)take_number(&reader, 4);
  if (kind == KIND_HELLO)
    welcome(&reader);
  else if (has_epoch)
    handlers->frame_received(kind, request, &reader);
}

static bool can_answer(void) {
  return OUT_BYTES - (out_length - out_sent) >= STUFFED_MAX + 1 + LATE_ANSWERS_BYTES;
}

static void handle_input(void) {
  size_t done = 0;
  while (can_answer()) {
    uint8_t *zero = memchr(in + in_searched, 0, in_length - in_searched);
    if (zero == NULL) {
      in_searched = in_length;
      break;
    }
    size_t end = (size_t)(zero - in);
    if (!skipping) handle_frame(in + done, end - done);
    skipping = false;
    done = in_searched = end + 1;
  }
  memmove(in, in + done, in_length - done);
  in_length -= done;
  in_searched -= done;
  if (in_length == sizeof in && in_searched == in_length) {
    skipping = true;
    in_length = in_searched = 0;
  }
}

/* True when bytes arrived. */
static bool read_input(void) {
  if (!readable || in_length == sizeof in) return false;
  ssize_t count = read(channel.fd, in + in_length, sizeof in - in_length);
  if (count > 0) {
    in_length += (size_t)count;
    heard_at_ms = now_ms();
    left_at_ms = 0;
    return true;
  }
  if (count < 0 && errno == EINTR) return true;
  readable = false;
  if (count < 0 && errno == EAGAIN)
    left_at_ms = 0;
  else
    hang_up(count == 0);
  return false;
}

static uint64_t tick_leaving(void) {
  if (left_at_ms == 0 || !has_epoch) return UINT64_MAX;
  if (now_ms() < left_at_ms) return left_at_ms;
  readable = true;
  if (read_input()) return 0;
  if (left_at_ms != 0) lose_host();
  return UINT64_MAX;
}

uint64_t channel_tick(void) {
  return earlier(tick_writing(), earlier(tick_listening(), tick_leaving()));
}

/* True when everything has been written. */
static bool write_output(void) {
  while (writable && out_sent < out_length) {
    ssize_t count = write(channel.fd, out + out_sent, out_length - out_sent);
    if (count > 0) {
      out_sent += (size_t)count;
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    writable = false;
    if (errno != EAGAIN) hang_up(false);
  }
  return out_sent == out_length;
}

bool channel_run(void) {
  for (int turn = 0; turn < TURNS_AT_ONCE; turn++) {
    bool has_read = read_input();
    handle_input();
    bool composed = write_output() && has_epoch && handlers->compose(&frame);
    if (composed) send_frame(&frame);
    if (!has_read && !composed) return false;
  }
  return true;
}
