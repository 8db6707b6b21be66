/*
 * A kernel that exists only in this process: descriptors are numbers with a note of what they stand
 * for, nothing reaches the machine. Wrong use of a descriptor (closed twice, used when closed) ends
 * the run like any other defect.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { FDS_MAX = 1024, FD_NONE = -1 };
enum { KIND_NOTHING = -1, KIND_CLOSED, KIND_PLAIN, KIND_PIPE, KIND_SIGNALS, KIND_OWN = 16 };

/* No descriptor but these first ones, which are of the kind KIND_PLAIN. */
void begin_kernel(int first_fds);
/* A new descriptor with this or a higher number; -1 and EMFILE when there is none. */
int new_fd(int kind, int least);
int kind_of(int fd);
/* Does a call with a descriptor of this kind fail? Sets errno. */
bool is_refused(int kind);
void set_kind(int fd, int kind);
int open_fds(void);

/* The kind of a path when it is opened: a kind, or FD_NONE. A target may have its own. */
int kind_of_path(const char *path);
/* Reads from a descriptor; -1 and errno when that fails. */
ssize_t read_kind(int fd, int kind, void *into, size_t length);
/* Told what was written. Returns how much was taken. */
ssize_t written_to_kind(int fd, int kind, const void *bytes, size_t length);
/* In microseconds; each look at the clock takes one. */
extern uint64_t clock_us;
