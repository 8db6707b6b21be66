#define _GNU_SOURCE
#include "modules.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define MODULES "/modules"
/* Modules that are loaded on demand; `modprobe`, which is this program; and `index`, each of whose
   lines has a name or an alias and the files to load, in their order. */
#define OFFERED "/kernel"
#define OFFERED_AT "/run/berth/kernel"
#define LOADER "modprobe"

enum { LINE_BYTES = 1024 };

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

/* Opening them loads the module, which would make them itself only once it is loaded. */
static void make_devices(void) {
  static const struct {
    const char *path;
    unsigned minor;
  } all[] = {{"/dev/net/tun", 200}, {"/dev/fuse", 229}, {"/dev/loop-control", 237}};
  mkdir("/dev/net", 0755);
  for (size_t index = 0; index < sizeof all / sizeof *all; index++)
    mknod(all[index].path, S_IFCHR | 0600, makedev(10, all[index].minor));
}

static int name_loader(void) {
  int fd = open("/proc/sys/kernel/modprobe", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  ssize_t wrote = write(fd, OFFERED_AT "/" LOADER, sizeof OFFERED_AT + sizeof LOADER - 1);
  int error = wrote < 0 ? errno : 0;
  close(fd);
  return error;
}

int offer_modules(void) {
  if (access(OFFERED, F_OK) != 0) return 0;
  /* Below /run, which is moved to the new root. */
  if (mkdir("/run/berth", 0755) != 0 && errno != EEXIST) return errno;
  if (mkdir(OFFERED_AT, 0755) != 0 && errno != EEXIST) return errno;
  if (mount(OFFERED, OFFERED_AT, NULL, MS_BIND, NULL) != 0) return errno;
  unsigned long closed = MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV;
  if (mount(NULL, OFFERED_AT, NULL, closed, NULL) != 0) return errno;
  make_devices();
  return name_loader();
}

/* In names of modules both characters mean the same. */
static void unify(char *name) {
  for (; *name != '\0'; name++)
    if (*name == '-') *name = '_';
}

static int load_on_demand(char *name) {
  char line[LINE_BYTES], *rest;
  int found = 1, directory = open(OFFERED_AT, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  FILE *index = fopen(OFFERED_AT "/index", "re");
  if (directory < 0 || index == NULL) return 1;
  unify(name);
  while (found != 0 && fgets(line, sizeof line, index) != NULL) {
    const char *file = strtok_r(line, " \n", &rest);
    if (file == NULL || strcmp(file, name) != 0) continue;
    found = 0;
    while (found == 0 && (file = strtok_r(NULL, " \n", &rest)) != NULL)
      found = load(directory, file) == 0 ? 0 : 1;
  }
  fclose(index);
  close(directory);
  return found;
}

bool asked_for_module(int argc, char **argv, int *exit_code) {
  const char *slash = argc > 1 ? strrchr(argv[0], '/') : NULL;
  if (argc < 2 || strcmp(slash == NULL ? argv[0] : slash + 1, LOADER) != 0) return false;
  *exit_code = load_on_demand(argv[argc - 1]);
  return true;
}
