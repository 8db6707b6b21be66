/* Builds the root that a sandbox's container finds: made in a mount namespace of its own. */
#pragma once
#include <stdint.h>
#include <sys/types.h>

struct container_root {
  const char *image; /* The directory that every sandbox begins with. */
  const char *disk;  /* The image file with what this one wrote. */
  int first_loop;    /* The first loop device number that belongs to this host. */
  uint32_t owner;    /* The user and group of the host that root inside is. */
  int user_namespace;
};

/*
 * Enters a new mount namespace, and mounts `root` and `dev` there in the working directory. The
 * host never sees these mounts, and the kernel removes them with the last process of the container,
 * however that ends. Prints the reason and ends the process when it fails.
 */
void mount_container_root(const struct container_root *spec);

/*
 * Mounts a file over the boot id of the kernel in the namespaces of a process; the guest agent
 * rewrites it (agent/guest/settings.c). Ends the process when it fails.
 */
void cover_boot_id(pid_t pid, uint32_t owner);
