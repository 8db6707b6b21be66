#define _GNU_SOURCE
#include "file-list.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file-answer.h"
#include "file-place.h"
#include "wire.h"

enum {
  NAMES_BYTES = 4 * MIB,
  PAGE_BYTES = 1 * MIB,
  NAMES_BYTES_MIN = 16 * KIB,
  NAME_COST = 32, /* Bytes that each name costs besides its own. */
};

/* A max-heap: the largest name is the one to give up. */
struct names {
  char **heap;
  size_t count, room, bytes, bytes_max;
  bool is_cut; /* There are more than these. */
};

struct level {
  int directory;
  struct names names;
  size_t next;
  size_t path_length; /* Length of this directory's part in the paths of its entries. */
  char after[NAME_MAX + 1];
};

static struct level levels[FILE_DEPTH_MAX];
static size_t depth;
static char path[FILE_PATH_MAX + 1]; /* From the directory that is listed. */

static void swap(char **one, char **other) {
  char *name = *one;
  *one = *other;
  *other = name;
}

static void sink(struct names *names) {
  char **heap = names->heap;
  for (size_t at = 0, child; (child = 2 * at + 1) < names->count; at = child) {
    if (child + 1 < names->count && strcmp(heap[child + 1], heap[child]) > 0) child++;
    if (strcmp(heap[at], heap[child]) >= 0) return;
    swap(&heap[at], &heap[child]);
  }
}

static void drop_largest(struct names *names) {
  names->bytes -= strlen(names->heap[0]) + NAME_COST;
  free(names->heap[0]);
  names->heap[0] = names->heap[--names->count];
  sink(names);
  names->is_cut = true;
}

static int add_name(struct names *names, const char *name) {
  if (names->count == names->room) {
    size_t room = names->room == 0 ? 64 : 2 * names->room;
    char **grown = realloc(names->heap, room * sizeof *grown);
    if (grown == NULL) return ENOMEM;
    names->heap = grown;
    names->room = room;
  }
  char *copy = strdup(name);
  if (copy == NULL) return ENOMEM;
  size_t at = names->count++;
  names->heap[at] = copy;
  for (; at > 0 && strcmp(names->heap[at], names->heap[(at - 1) / 2]) > 0; at = (at - 1) / 2)
    swap(&names->heap[at], &names->heap[(at - 1) / 2]);
  names->bytes += strlen(name) + NAME_COST;
  return 0;
}

static void drop_names(struct names *names) {
  for (size_t index = 0; index < names->count; index++) free(names->heap[index]);
  names->count = names->bytes = 0;
  names->is_cut = false;
}

static int compare(const void *one, const void *other) {
  return strcmp(*(char *const *)one, *(char *const *)other);
}

/* Reads the smallest names after `after`, as many as there is room for. */
static int fill(struct level *level, size_t count_max) {
  struct names *names = &level->names;
  int fd = open_safely(level->directory, ".", O_RDONLY | O_DIRECTORY, 0);
  DIR *directory = fd < 0 ? NULL : fdopendir(fd);
  if (directory == NULL) return errno;
  int error = 0;
  drop_names(names);
  level->next = 0;
  for (struct dirent *entry; error == 0 && (entry = readdir(directory)) != NULL; errno = 0) {
    const char *name = entry->d_name;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
    if (strcmp(name, level->after) <= 0) continue;
    bool is_full = names->count >= count_max || names->bytes >= names->bytes_max;
    if (is_full && strcmp(name, names->heap[0]) > 0) {
      names->is_cut = true;
      continue;
    }
    error = add_name(names, name);
    while (names->count > 1 && (names->count > count_max || names->bytes > names->bytes_max))
      drop_largest(names);
  }
  closedir(directory);
  if (names->count > 1) qsort(names->heap, names->count, sizeof *names->heap, compare);
  return error;
}

/* Takes the directory over, from after this name. */
static int enter(int directory, const char *after, size_t path_length, size_t count_max) {
  struct level *level = &levels[depth];
  *level = (struct level){.directory = directory, .path_length = path_length};
  snprintf(level->after, sizeof level->after, "%s", after);
  /* Half of what the levels above have: together they never have more than twice the first. */
  size_t bytes = depth >= 16 ? 0 : (size_t)NAMES_BYTES >> depth;
  level->names.bytes_max = bytes < NAMES_BYTES_MIN ? NAMES_BYTES_MIN : bytes;
  depth++;
  return fill(level, count_max);
}

static void leave(void) {
  struct level *level = &levels[--depth];
  drop_names(&level->names);
  free(level->names.heap);
  close(level->directory);
}

static int open_below(int directory, const char *name) {
  return open_safely(directory, name, O_PATH | O_DIRECTORY | O_NOFOLLOW, 0);
}

/* Goes down to where the page before ended; a directory that is gone has nothing after it. */
static int resume(int directory, const struct file_task *task) {
  char rest[FILE_PATH_MAX + 1];
  memcpy(rest, task->other, sizeof rest);
  for (char *name = rest, *next; name != NULL; name = next) {
    next = strchr(name, '/');
    size_t at = (size_t)(name - rest);
    if (next != NULL) *next++ = '\0';
    if (strlen(name) > NAME_MAX || depth + 1 >= FILE_DEPTH_MAX) return EINVAL;
    int error = enter(directory, name, at, task->limit);
    if (error != 0 || (task->flags & ASKED_RECURSIVE) == 0) return error;
    directory = *name == '\0' ? -1 : open_below(directory, name);
    if (directory < 0) return 0;
    memcpy(path, task->other, at + strlen(name));
    path[at + strlen(name)] = '/';
    if (next == NULL) return enter(directory, "", at + strlen(name) + 1, task->limit);
  }
  return 0;
}

/* Entries that are gone by now are left out. */
static bool list_entry(const struct level *level, const char *name, struct stat *found) {
  if (fstatat(level->directory, name, found, AT_SYMLINK_NOFOLLOW) != 0) return false;
  size_t length = strlen(name);
  memcpy(path + level->path_length, name, length + 1);
  answer_number(level->path_length + length, 2);
  answer_bytes(path, level->path_length + length);
  answer_stat(found);
  answer_target(level->directory, name, found);
  return true;
}

static int descend(const struct level *level, const char *name, size_t left) {
  size_t length = level->path_length + strlen(name);
  int directory = open_below(level->directory, name);
  if (directory < 0) return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : errno;
  if (is_kernel_file_system(directory)) return close(directory); /* Its directories have no end. */
  if (depth == FILE_DEPTH_MAX || length + 2 > FILE_PATH_MAX) return RESULT_TOO_DEEP;
  path[length] = '/';
  return enter(directory, "", length + 1, left);
}

/* The next name of the innermost level; NULL when it is at its end. */
static const char *next_name(struct level *level, size_t left, int *error) {
  struct names *names = &level->names;
  *error = 0;
  if (level->next == names->count) {
    if (!names->is_cut || names->count == 0) return NULL;
    snprintf(level->after, sizeof level->after, "%s", names->heap[names->count - 1]);
    *error = fill(level, left);
    if (*error != 0 || names->count == 0) return NULL;
  }
  return names->heap[level->next++];
}

static int list_tree(const struct file_task *task, size_t *left, size_t *bytes_left) {
  while (depth > 0 && *left > 0 && *bytes_left > 0) {
    struct level *level = &levels[depth - 1];
    struct stat found;
    int error;
    const char *name = next_name(level, *left, &error);
    if (error != 0) return error;
    if (name == NULL) {
      leave();
      continue;
    }
    size_t cost = level->path_length + strlen(name);
    if (cost > FILE_PATH_MAX) return RESULT_TOO_DEEP;
    if (!list_entry(level, name, &found)) continue;
    if (S_ISLNK(found.st_mode)) cost += (size_t)found.st_size;
    --*left;
    *bytes_left -= cost < *bytes_left ? cost : *bytes_left;
    bool goes_on = S_ISDIR(found.st_mode) && (task->flags & ASKED_RECURSIVE) != 0;
    error = goes_on ? descend(level, name, *left == 0 ? 1 : *left) : 0;
    if (error != 0) return error;
  }
  return 0;
}

_Noreturn void list_files(const struct file_task *task) {
  size_t left = task->limit, bytes_left = PAGE_BYTES;
  if (left == 0) finish_with(EINVAL);
  int link = (task->flags & ASKED_FOLLOW) != 0 ? 0 : O_NOFOLLOW;
  int directory = open_safely(AT_FDCWD, task->path, O_PATH | O_DIRECTORY | link, 0);
  if (directory < 0) finish_with(errno);
  int error = resume(directory, task);
  if (error != 0) finish_with(error);
  answer_number(0, 2);
  error = list_tree(task, &left, &bytes_left);
  answer_number(0, 2);
  answer_number(depth > 0, 1);
  finish_with(error);
}
