/*
 * The guest's end of the channel: epochs, frames in and out, and what waits to be sent. What frames
 * mean is the business of the handlers.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "wire.h"

struct channel_handlers {
  /* A new host has connected: whatever the former one had begun to ask for is void. */
  void (*host_changed)(void);
  /* No host is there any more, or it has been silent for too long. */
  void (*host_left)(void);
  /* The fields of a frame, whose kind may be unknown. */
  void (*frame_received)(uint8_t kind, uint32_t request, struct reader *reader);
  /* Composes the next frame to send unasked; false when there is none. */
  bool (*compose)(struct writer *writer);
};

/*
 * A port of virtio-serial stays open while no host is there. A socket, in tests, ends with its
 * host, and the guest agent with it. 0, or -1 and errno. The handlers are kept.
 */
int channel_open(int fd, bool is_port, const struct channel_handlers *handlers);
/*
 * In a container the host connects to a socket that listens. Each connection takes the place of the
 * one before it, and without one the guest agent goes on as with a port that nobody has opened.
 */
int channel_listen(int fd, const struct channel_handlers *handlers);
/* Reads, handles and writes without blocking; true when it should be called again at once. */
bool channel_run(void);
/* Does what is due by now; returns when to call `channel_run` again if nothing happens before. */
uint64_t channel_tick(void);
/* Some output waits for the host to read. */
bool channel_is_blocked(void);
/* The other end of a socket is gone. */
bool channel_has_ended(void);
/* After how many milliseconds a silent host counts as gone. */
void set_host_silence(uint64_t ms);

/* Begins an answer, or another frame that may be sent now; `send_frame` sends it. */
struct writer *new_frame(uint8_t kind, uint32_t request);
void send_frame(struct writer *writer);
void answer_done(uint32_t request);
void answer_failed(uint32_t request, uint16_t failure);
/* Answers with FAILURE_SYSTEM: the step that failed, and its errno. */
void answer_error(uint32_t request, const char *step, int error);
