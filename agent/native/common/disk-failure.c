#include "disk-failure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void fail(int code, const char *what, int error) {
  fprintf(stderr, "%s: %s\n", what, strerror(error));
  exit(code);
}

_Noreturn void fail_on_storage(const char *what, int error) { fail(STORAGE_FAILED, what, error); }
