/* Mounts: what a guest needs before it is configured, and the change to its root disk. */
#pragma once

/* In the initramfs: proc, sys, dev …; returns 0 or an error number. */
int mount_initial(void);
/* Makes the device the root, once; a second call says whether it is this one. */
int switch_root(const char *device, const char *type);
/* Nothing on the root disk is lost when the machine stops after this. */
void finish_root(void);
