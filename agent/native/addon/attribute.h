/* Extended attributes of open files (xattr(7)). */
#pragma once
#include <stdint.h>
#include <sys/types.h>

/* The length of an attribute that the file does not have. */
enum { ATTRIBUTE_ABSENT = -1 };

/*
 * Reads an attribute of any length. Its length, with the value for the caller to free;
 * ATTRIBUTE_ABSENT; or less than that, and errno.
 */
ssize_t read_attribute(int fd, const char *name, uint8_t **value);
