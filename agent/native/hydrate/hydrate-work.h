/* Work of the `hydrate` process whose turn it is (hydrate.c). */
#pragma once

/* Answers the kernel and obeys the agent until the file system is unmounted. */
void work(int slot);
