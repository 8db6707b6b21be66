#define _GNU_SOURCE
#include "attribute.h"

#include <errno.h>
#include <linux/limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "../common/beneath.h"

enum { FAILED = ATTRIBUTE_ABSENT - 1 };

static ssize_t failure(void) {
  return errno == ENODATA || errno == ENOTSUP ? ATTRIBUTE_ABSENT : FAILED;
}

ssize_t read_attribute(int fd, const char *name, uint8_t **value) {
  uint8_t small[ATTRIBUTE_BYTES_MAX];
  ssize_t length = fgetxattr(fd, name, small, sizeof small);
  bool is_large = length < 0 && errno == ERANGE;
  if (length < 0 && !is_large) return failure();
  *value = malloc(is_large ? XATTR_SIZE_MAX : (size_t)length + 1);
  if (*value == NULL) return FAILED;
  if (!is_large) {
    memcpy(*value, small, (size_t)length);
    return length;
  }
  length = fgetxattr(fd, name, *value, XATTR_SIZE_MAX);
  if (length >= 0) return length;
  length = failure();
  free(*value);
  *value = NULL;
  return length;
}
