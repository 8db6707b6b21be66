#ifndef BERTH_GUEST_NETWORK_H
#define BERTH_GUEST_NETWORK_H

#include "settings.h"

/* Whatever interfaces there are, while nobody is in a hurry; the settings name one of them. */
void raise_interfaces(void);
/* Address, route and MTU of one interface, and the loopback; 0 or an error number. IPv4 only. */
int configure_network(const struct settings *settings);

#endif
