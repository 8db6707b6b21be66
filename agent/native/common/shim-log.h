/* The log of what a machine prints. */
#pragma once

/* Reads what QEMU and the guest's kernel print until end of file, and keeps the last of it. */
void keep_log(int output, int directory);
