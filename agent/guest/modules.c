#define _GNU_SOURCE
#include "modules.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MODULES "/modules"

static int load(int directory, const char *name) {
  int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  /* ENODEV: no such device. EEXIST: loaded already. A module that is missed fails later steps. */
  long result = syscall(SYS_finit_module, fd, "", 0);
  int error = result == 0 || errno == EEXIST || errno == ENODEV ? 0 : errno;
  close(fd);
  return error;
}

int load_modules(void) {
  struct dirent **names;
  int error = 0, directory = open(MODULES, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return errno == ENOENT ? 0 : errno; /* Everything is built into the kernel. */
  int count = scandir(MODULES, &names, NULL, alphasort);
  for (int index = 0; index < count; index++) {
    if (names[index]->d_name[0] != '.' && error == 0) error = load(directory, names[index]->d_name);
    free(names[index]);
  }
  if (count >= 0) free(names);
  close(directory);
  return count < 0 ? errno : error;
}
