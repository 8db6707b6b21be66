/* Mounts: what a guest needs before it is configured, and the change to its root disk. */
#pragma once

/* Mounts proc, sys, dev and so on in the initramfs. 0, or an error number. */
int mount_initial(void);
/* Makes the device the root, once. A second call fails with EBUSY unless it names the same one. */
int switch_root(const char *device, const char *type);
/* Syncs the root and makes a root disk read-only; the machine may stop after this. */
void finish_root(void);
