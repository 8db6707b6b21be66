#ifndef BERTH_GUEST_NETWORK_H
#define BERTH_GUEST_NETWORK_H

#include "settings.h"

/* Address, route and MTU of one interface, and the loopback; 0 or an error number. IPv4 only. */
int configure_network(const struct settings *settings);

#endif
