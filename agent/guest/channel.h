/* The guest's end of the channel: epochs, frames in and out, and what waits to be sent. */
#ifndef BERTH_GUEST_CHANNEL_H
#define BERTH_GUEST_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "wire.h"

/*
 * A port of virtio-serial stays open while no host is there; a socket, in tests, ends with the host
 * and the guest agent with it.
 */
int channel_open(int fd, bool is_port);
/* Reads, handles and writes what can be without waiting; true when it should be called again. */
bool channel_run(void);
/* When to run it again, if nothing happens before. */
uint64_t channel_tend(void);
/* Bytes wait that the host does not take. */
bool channel_is_blocked(void);
/* The other end of a socket is gone. */
bool channel_has_ended(void);

/* An answer, or a frame that the caller may send now; sent with `send_frame`. */
struct writer *new_frame(uint8_t kind, uint32_t request);
void send_frame(struct writer *writer);
void answer_done(uint32_t request);
void answer_failed(uint32_t request, uint16_t failure);
/* What the system refused; the error number is errno's. */
void answer_error(uint32_t request, const char *step, int error);

#endif
