/* The environment of processes: a basic one, the sandbox's, and their own. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* NAME=value entries, each ended by NUL, of all processes. 0, or an error number. */
int set_default_environment(const char *environment, size_t length);
/* With the entries of one process. Ends with NULL; valid until the next call. */
char **environment_of(const char *home, bool has_terminal, const char *own, size_t length);
