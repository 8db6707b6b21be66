/* TCP connections of this guest, those of containers and other networks inside it included. */
#pragma once
#include <stdint.h>

/*
 * Ends the connections with an address, in network byte order, except NFS mounts, which reconnect:
 * their owners get ECONNABORTED. A kernel that cannot end any leaves them as they are.
 */
void end_connections(uint32_t address);
