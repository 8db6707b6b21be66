/* The device nodes, links and mount points of a container's /dev. */
#pragma once
#include <stdint.h>

/* Makes them in an open directory, owned by this user and group. 0, or -1 and errno. */
int fill_devices(int directory, uint32_t owner);
