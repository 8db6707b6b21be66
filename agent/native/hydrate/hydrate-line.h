/* The connection to the agent, of which there is at most one (hydrate.c). */
#pragma once
#include <stdbool.h>

/* Forgets the connection of the process that this one comes from. */
void reset_line(void);

/* The descriptor to wait for: NONE while nobody is connected. */
int line_descriptor(void);

/* Takes the next connection instead of the present one. Returns false when nobody is connected. */
bool accept_line(void);

/* Sends a line, if anybody is connected. */
__attribute__((format(printf, 1, 2))) void tell(const char *format, ...);

/* Reads what has come and calls for every whole line of it. */
void read_lines(void (*obey)(const char *line));
