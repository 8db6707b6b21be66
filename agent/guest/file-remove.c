#define _GNU_SOURCE
#include "file-remove.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <unistd.h>

#include "file-answer.h"
#include "file-place.h"
#include "wire.h"

/* Descriptors of so many directories are open at the same time. */
enum { REMOVED_DEPTH_MAX = 1000 };

static int remove_tree(int parent, const char *name, int depth);

/* Makes one pass over a directory. *found: there was something to remove. */
static int remove_entries(DIR *directory, int depth, bool *found) {
  int error = 0;
  *found = false;
  rewinddir(directory);
  for (struct dirent *entry; error == 0 && (entry = readdir(directory)) != NULL;) {
    const char *name = entry->d_name;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
    *found = true;
    error = remove_tree(dirfd(directory), name, depth + 1);
    if (error == ENOENT) error = 0;
  }
  return error;
}

static int remove_tree(int parent, const char *name, int depth) {
  bool found = true;
  if (unlinkat(parent, name, 0) == 0) return 0;
  if (errno != EISDIR && errno != EPERM) return errno;
  if (unlinkat(parent, name, AT_REMOVEDIR) == 0) return 0;
  if (errno != ENOTEMPTY && errno != EEXIST) return errno;
  if (depth == REMOVED_DEPTH_MAX) return RESULT_TOO_DEEP;
  uint64_t here = RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS;
  int fd = open_safely(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, here);
  if (fd < 0) return errno == EXDEV ? EBUSY : errno;
  DIR *directory = fdopendir(fd);
  if (directory == NULL) {
    close(fd);
    return ENOMEM;
  }
  /* Until a pass finds nothing: a directory that is read while it shrinks may skip entries. */
  int error = 0;
  while (error == 0 && found) error = remove_entries(directory, depth, &found);
  closedir(directory);
  if (error != 0) return error;
  return unlinkat(parent, name, AT_REMOVEDIR) == 0 ? 0 : errno;
}

_Noreturn void remove_files(const struct file_task *task) {
  struct place place;
  int error = find_place(task, task->path, false, &place);
  if (error != 0) finish_with(error == EISDIR ? EBUSY : error);
  if (!place.exists) finish_with(ENOENT);
  if ((task->flags & ASKED_RECURSIVE) != 0)
    finish_with(remove_tree(place.directory, place.name, 0));
  int flags = S_ISDIR(place.found.st_mode) ? AT_REMOVEDIR : 0;
  finish_with(unlinkat(place.directory, place.name, flags) == 0 ? 0 : errno);
}
