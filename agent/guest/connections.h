/* TCP connections of this guest, those of containers and other networks inside it included. */
#pragma once
#include <stdint.h>

/*
 * Ends the connections that leave the guest by its own address, and those of other networks inside
 * it with the gateway, except NFS mounts, which reconnect: their owners get ECONNABORTED. A kernel
 * that cannot end any leaves them as they are. Addresses are in network byte order.
 */
void end_connections(uint32_t own, uint32_t gateway);
