#pragma once
#include <stdint.h>

/* Settings of one interface; addresses are in network byte order. */
struct network_settings {
  char interface[16];        /* Empty where there is none, or the host sets it up. */
  uint32_t address, gateway; /* A gateway of 0 adds no route. */
  uint8_t prefix_bits;
  uint16_t mtu_bytes; /* 0 leaves it unchanged. */
};

/*
 * Brings up every interface while nothing waits for it. Failures are ignored here; configuring the
 * interface reports them.
 */
void raise_interfaces(void);
/* Sets up one interface and the loopback, IPv4 only. 0, or an error number. */
int configure_network(const struct network_settings *settings);
