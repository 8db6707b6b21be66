/* Directories whose entries come from the input, and files read through stdio. */
#define _GNU_SOURCE
#include <dirent.h>
#include <string.h>

#include "fuzz.h"
#include "kernel.h"

enum { TEXT_MAX = 4096 };

static struct {
  int fd;
  struct dirent entry;
} directories[4];

void *fake_malloc(size_t size);

FAKE DIR *fake_opendir(const char *path) {
  CHECK(strlen(path) < 4096);
  for (size_t index = 0; index < 4; index++)
    if (directories[index].fd <= 0 && !call_fails()) {
      directories[index].fd = new_fd(KIND_PLAIN, 0);
      return directories[index].fd < 0 ? NULL : (DIR *)&directories[index];
    }
  return NULL;
}

static bool take_entry(struct dirent *entry) {
  size_t length = take_u8();
  memset(entry, 0xee, sizeof *entry);
  entry->d_type = take_u8() % 14;
  length = take_into(entry->d_name, length);
  entry->d_name[length] = '\0';
  /* No name of a file is empty or has a slash. */
  for (char *at = entry->d_name; *at != '\0'; at++)
    if (*at == '/') *at = '_';
  return entry->d_name[0] != '\0';
}

FAKE struct dirent *fake_readdir(DIR *directory) {
  struct dirent *entry = &((__typeof__(&directories[0]))directory)->entry;
  return call_fails() || !take_entry(entry) ? NULL : entry;
}

FAKE int fake_dirfd(DIR *directory) { return ((__typeof__(&directories[0]))directory)->fd; }

int fake_close(int fd);

FAKE int fake_closedir(DIR *directory) {
  fake_close(fake_dirfd(directory));
  ((__typeof__(&directories[0]))directory)->fd = -1;
  return 0;
}

FAKE int fake_scandir(const char *path, struct dirent ***names,
                      int (*filter)(const struct dirent *),
                      int (*compare)(const struct dirent **, const struct dirent **)) {
  (void)path, (void)filter, (void)compare;
  if (call_fails() || (*names = fake_malloc(4 * sizeof **names)) == NULL) return -1;
  int count = 0;
  struct dirent entry;
  while (count < 4 && take_entry(&entry) && ((*names)[count] = fake_malloc(sizeof entry)) != NULL)
    *(*names)[count++] = entry;
  return count;
}

/* A text of the input in the place of a file's. */
FAKE FILE *fake_fopen(const char *path, const char *mode) {
  static char text[TEXT_MAX + 1];
  (void)mode;
  if (kind_of_path(path) == FD_NONE || call_fails()) return NULL;
  size_t length = take_into(text, take_up_to(TEXT_MAX));
  return fmemopen(text, length == 0 ? 1 : length, "r");
}
