#pragma once

#include <stdbool.h>

/* Loads the kernel modules of the initramfs, in the order of their names; 0 or an error number. */
int load_modules(void);
/*
 * Has the kernel find the other modules of the initramfs when something first needs them, also
 * after the change of the root. 0 or an error number.
 */
int offer_modules(void);
/*
 * Whether this process was started by the kernel, or anybody, in order to load a module; then it
 * does that. The exit code is 1 when the initramfs has no such module.
 */
bool asked_for_module(int argc, char **argv, int *exit_code);
