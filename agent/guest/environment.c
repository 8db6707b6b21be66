#include "environment.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "user.h"
#include "wire.h"

static char *default_environment;
static size_t default_length;

int set_default_environment(const char *environment, size_t length) {
  char *copy = malloc(length + 1);
  if (copy == NULL) return ENOMEM;
  memcpy(copy, environment, length);
  free(default_environment);
  default_environment = copy;
  default_length = length;
  return 0;
}

/* Adds NAME=value, or replaces the earlier entry of that name. */
static size_t put_variable(char **variables, size_t count, char *entry) {
  char *equals = strchr(entry, '=');
  if (equals == NULL || equals == entry) return count;
  size_t name_length = (size_t)(equals - entry) + 1;
  for (size_t index = 0; index < count; index++)
    if (strncmp(variables[index], entry, name_length) == 0) {
      variables[index] = entry;
      return count;
    }
  variables[count] = entry;
  return count + 1;
}

static size_t put_variables(char **variables, size_t count, const char *block, size_t length) {
  size_t most = count + LIMIT_ENVIRONMENT_ENTRIES_MAX;
  for (size_t at = 0; at < length && count < most; at += strlen(block + at) + 1)
    count = put_variable(variables, count, (char *)(uintptr_t)(block + at));
  return count;
}

char **environment_of(const char *its_home, bool has_terminal, const char *own, size_t length) {
  static char *variables[2 * LIMIT_ENVIRONMENT_ENTRIES_MAX + 8];
  static char path[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  static char home[sizeof "HOME=" + USER_HOME_MAX], terminal[] = "TERM=xterm-256color";
  snprintf(home, sizeof home, "HOME=%s", its_home);
  size_t count = put_variable(variables, 0, path);
  count = put_variable(variables, count, home);
  if (has_terminal) count = put_variable(variables, count, terminal);
  count = put_variables(variables, count, default_environment, default_length);
  count = put_variables(variables, count, own, length);
  variables[count] = NULL;
  return variables;
}
