/* Detached mounts, cloned from what is mounted already. */
#pragma once
#include <stdint.h>

/*
 * Clones the mount of a file or directory, without those below it (open_tree(2), mount_setattr(2)).
 * An empty path means `directory` itself. With a user namespace (not -1) owners look the same in
 * it as in the original. Returns a descriptor, or -1 and errno.
 *
 * The clone is private: on a host with systemd every mount is shared, and whatever is mounted on a
 * clone that is not private appears in the original as well, in every mount namespace of the host.
 */
int clone_tree(int directory, const char *path, uint64_t attributes, int user_namespace);
