#pragma once

/* Loads the kernel modules of the initramfs, in the order of their names; 0 or an error number. */
int load_modules(void);
