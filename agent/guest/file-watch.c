#define _GNU_SOURCE
#include "file-watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "file-answer.h"
#include "file-place.h"
#include "wire.h"

enum {
  EVENT_READY = 1,
  EVENT_CREATED = 2,
  EVENT_MODIFIED = 3,
  EVENT_REMOVED = 4,
  EVENT_ATTRIBUTES = 5,
  EVENT_OVERFLOW = 6,
  EVENT_END = 7,

  BUCKETS = 4096,
  DIRECTORIES_MAX = 32768,
  EVENTS_BYTES = 64 * KIB,
  WATCHED = IN_CREATE | IN_DELETE | IN_MODIFY | IN_CLOSE_WRITE | IN_ATTRIB | IN_MOVED_FROM |
            IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR | IN_EXCL_UNLINK,
};

/* A watched directory. */
struct node {
  int wd;
  struct node *parent; /* NULL: the one that was asked for. */
  struct node *next;   /* In its bucket. */
  bool is_dead;        /* To be freed: its directory was moved away, or is gone. */
  char *name;
};

static int inotify = -1;
static struct node *buckets[BUCKETS], *root;
static size_t nodes_count;
static const char *root_path;
static bool is_recursive, is_telling;

static struct node *find_node(int wd) {
  struct node *node = buckets[wd % BUCKETS];
  while (node != NULL && node->wd != wd) node = node->next;
  return node;
}

/* The path of a name in a directory, from the one that was asked for. False when it is too long. */
static bool path_of(const struct node *node, const char *name, char *into) {
  size_t at = FILE_PATH_MAX;
  char *end = into + at;
  *end = '\0';
  for (const char *part = name;; part = node->name, node = node->parent) {
    size_t length = strlen(part);
    bool is_first = *end == '\0';
    if (length > 0) {
      if (length + !is_first > at) return false;
      if (!is_first) into[--at] = '/';
      at -= length;
      memcpy(into + at, part, length);
      end = into + at;
    }
    if (node == NULL || node == root) break;
  }
  memmove(into, into + at, FILE_PATH_MAX - at + 1);
  return true;
}

static void tell(int kind, bool is_directory, const char *path) {
  answer_number((uint64_t)kind, 1);
  answer_number(is_directory, 1);
  answer_number(strlen(path), 2);
  answer_bytes(path, strlen(path));
}

static _Noreturn void end_with(int result) {
  tell(EVENT_END, false, "");
  finish_with(result);
}

static void tell_of(int kind, bool is_directory, const struct node *node, const char *name) {
  static char path[FILE_PATH_MAX + 1];
  if (path_of(node, name, path))
    tell(kind, is_directory, path);
  else
    tell(EVENT_OVERFLOW, false, "");
}

static void forget_node(struct node *node) {
  struct node **at = &buckets[node->wd % BUCKETS];
  while (*at != node) at = &(*at)->next;
  *at = node->next;
  nodes_count--;
  free(node->name);
  free(node);
}

static bool is_below(const struct node *node, const struct node *ancestor) {
  while (node != NULL && node != ancestor) node = node->parent;
  return node != NULL;
}

static struct node *add_node(int wd) {
  if (nodes_count == DIRECTORIES_MAX) end_with(RESULT_TOO_MANY);
  struct node *node = calloc(1, sizeof *node);
  if (node == NULL) end_with(ENOMEM);
  node->wd = wd;
  node->next = buckets[wd % BUCKETS];
  buckets[wd % BUCKETS] = node;
  nodes_count++;
  return node;
}

/* Watches a directory; NULL when it is gone. A known one has moved: it gets its new place. */
static struct node *watch_directory(struct node *parent, const char *name) {
  static char path[FILE_PATH_MAX + 1], whole[2 * FILE_PATH_MAX + 2];
  if (parent != NULL && !path_of(parent, name, path)) end_with(RESULT_TOO_DEEP);
  snprintf(whole, sizeof whole, "%s/%s", root_path, parent == NULL ? "." : path);
  int link = parent == NULL ? 0 : IN_DONT_FOLLOW;
  int wd = inotify_add_watch(inotify, whole, (uint32_t)(WATCHED | link));
  if (wd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP)) return NULL;
  if (wd < 0) end_with(errno == ENOSPC ? RESULT_TOO_MANY : errno);
  struct node *node = find_node(wd);
  if (node != NULL && is_below(parent, node)) return NULL; /* Mounted below itself. */
  if (node == NULL) node = add_node(wd);
  free(node->name);
  node->name = strdup(name);
  if (node->name == NULL) end_with(ENOMEM);
  node->parent = parent;
  node->is_dead = false;
  return node;
}

static bool is_directory_at(int directory, const struct dirent *entry) {
  struct stat found;
  if (entry->d_type != DT_UNKNOWN) return entry->d_type == DT_DIR;
  return fstatat(directory, entry->d_name, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
         S_ISDIR(found.st_mode);
}

/* Files that have no name: those of O_TMPFILE, which the kernel calls by their number. */
static bool is_nameless(const struct node *node, const char *name) {
  static char path[FILE_PATH_MAX + 1], whole[2 * FILE_PATH_MAX + 2];
  struct stat found;
  size_t digits = strspn(name + 1, "0123456789");
  if (name[0] != '#' || digits == 0 || name[1 + digits] != '\0' || !path_of(node, name, path))
    return false;
  snprintf(whole, sizeof whole, "%s/%s", root_path, path);
  return lstat(whole, &found) != 0 && errno == ENOENT;
}

/* Whether it tells of files that nobody else has seen, such as an upload before it is in place. */
static bool is_unseen(const struct inotify_event *event, const struct node *node) {
  if (strncmp(event->name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) == 0) return true;
  return (event->mask & (IN_DELETE | IN_MOVED_FROM)) == 0 && is_nameless(node, event->name);
}

/* Watches the directories below, and tells of what is there when they are new. */
static void scan(struct node *node, int directory, size_t depth) {
  DIR *entries = fdopendir(directory);
  if (entries == NULL) end_with(errno);
  if (depth == FILE_DEPTH_MAX) end_with(RESULT_TOO_DEEP);
  if (is_disk_of_host(directory)) end_with(RESULT_UNSEEN);
  for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
    const char *name = entry->d_name;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
    if (strncmp(name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) == 0) continue;
    bool is_directory = is_directory_at(dirfd(entries), entry);
    if (is_telling) tell_of(EVENT_CREATED, is_directory, node, name);
    if (!is_directory || !is_recursive) continue;
    struct node *child = watch_directory(node, name);
    if (child == NULL) continue;
    int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW;
    int below = open_safely(dirfd(entries), name, flags, 0);
    if (below >= 0 && !is_kernel_file_system(below))
      scan(child, below, depth + 1);
    else if (below >= 0)
      close(below);
  }
  closedir(entries);
}

static void scan_new(struct node *parent, const char *name) {
  static char path[FILE_PATH_MAX + 1], whole[2 * FILE_PATH_MAX + 2];
  struct node *node = watch_directory(parent, name);
  if (node == NULL || !path_of(parent, name, path)) return;
  snprintf(whole, sizeof whole, "%s/%s", root_path, path);
  int fd = open_safely(AT_FDCWD, whole, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
  if (fd < 0) return;
  is_telling = true;
  scan(node, fd, 1);
}

static void scan_root(bool tells) {
  int fd = open_safely(AT_FDCWD, root_path, O_RDONLY | O_DIRECTORY, 0);
  if (fd < 0) end_with(errno);
  is_telling = tells;
  scan(root, fd, 0);
}

static void forget_dead(void) {
  for (size_t bucket = 0; bucket < BUCKETS; bucket++)
    for (struct node *node = buckets[bucket], *next; node != NULL; node = next) {
      next = node->next;
      if (!node->is_dead) continue;
      inotify_rm_watch(inotify, node->wd);
      forget_node(node);
    }
}

/* Those at or below one; all but the one that was asked for when it is NULL. */
static void mark_dead(const struct node *at) {
  for (size_t bucket = 0; bucket < BUCKETS; bucket++)
    for (struct node *node = buckets[bucket]; node != NULL; node = node->next)
      node->is_dead = at == NULL ? node != root : is_below(node, at);
}

/* Forgets a directory that was moved away, and those below it: where they arrive they are new. */
static void forget_moved(const struct node *parent, const char *name) {
  for (size_t bucket = 0; bucket < BUCKETS; bucket++)
    for (struct node *node = buckets[bucket]; node != NULL; node = node->next) {
      if (node->parent != parent || strcmp(node->name, name) != 0) continue;
      mark_dead(node);
      return forget_dead();
    }
}

/* The kernel drops the watch of a directory that is gone; nothing is below it then. */
static void forget_gone(struct node *node) {
  if (node == root) end_with(ENOENT);
  for (size_t bucket = 0; bucket < BUCKETS; bucket++)
    for (struct node *child = buckets[bucket]; child != NULL; child = child->next)
      if (child->parent == node) return; /* Their own end follows. */
  forget_node(node);
}

static int kind_of(uint32_t mask) {
  if ((mask & (IN_CREATE | IN_MOVED_TO)) != 0) return EVENT_CREATED;
  if ((mask & (IN_DELETE | IN_MOVED_FROM)) != 0) return EVENT_REMOVED;
  if ((mask & (IN_MODIFY | IN_CLOSE_WRITE)) != 0) return EVENT_MODIFIED;
  return EVENT_ATTRIBUTES;
}

static void handle(const struct inotify_event *event) {
  if ((event->mask & IN_Q_OVERFLOW) != 0) {
    /* Directories may be new: they are watched before the host is told to look for itself. */
    mark_dead(NULL);
    if (is_recursive) scan_root(false);
    forget_dead();
    return tell(EVENT_OVERFLOW, false, "");
  }
  struct node *node = find_node(event->wd);
  if (node == NULL) return;
  if ((event->mask & (IN_IGNORED | IN_UNMOUNT)) != 0) return forget_gone(node);
  if (node == root && (event->mask & (IN_DELETE_SELF | IN_MOVE_SELF)) != 0) end_with(ENOENT);
  if (event->len == 0 || is_unseen(event, node))
    return; /* An event of the directory itself: its parent tells, too. */
  bool is_directory = (event->mask & IN_ISDIR) != 0;
  tell_of(kind_of(event->mask), is_directory, node, event->name);
  if (!is_directory || !is_recursive) return;
  if ((event->mask & (IN_CREATE | IN_MOVED_TO)) != 0) scan_new(node, event->name);
  if ((event->mask & IN_MOVED_FROM) != 0) forget_moved(node, event->name);
}

/* A program that writes much does so in many small writes: one event of a run is enough. */
static bool repeats(const struct inotify_event *one, const struct inotify_event *other) {
  uint32_t changes = IN_MODIFY | IN_CLOSE_WRITE;
  return one != NULL && one->wd == other->wd && (one->mask & changes) != 0 &&
         (other->mask & changes) != 0 && one->len == other->len &&
         memcmp(one->name, other->name, one->len) == 0;
}

_Noreturn void watch_files(const struct file_task *task) {
  static _Alignas(struct inotify_event) char events[EVENTS_BYTES];
  int link = (task->flags & ASKED_FOLLOW) != 0 ? 0 : O_NOFOLLOW;
  int directory = open_safely(AT_FDCWD, task->path, O_PATH | O_DIRECTORY | link, 0);
  if (directory < 0) finish_with(errno);
  if (is_kernel_file_system(directory)) finish_with(EOPNOTSUPP);
  if (is_disk_of_host(directory)) finish_with(RESULT_UNSEEN);
  close(directory);
  inotify = inotify_init1(IN_CLOEXEC);
  if (inotify < 0) finish_with(errno == EMFILE ? RESULT_TOO_MANY : errno);
  answer_number(0, 2);
  root_path = task->path;
  is_recursive = (task->flags & ASKED_RECURSIVE) != 0;
  root = watch_directory(NULL, "");
  if (root == NULL) end_with(ENOENT);
  if (is_recursive) scan_root(false);
  tell(EVENT_READY, true, "");
  for (;;) {
    flush_answer();
    ssize_t got = read(inotify, events, sizeof events);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) end_with(errno);
    const struct inotify_event *last = NULL;
    for (ssize_t at = 0; at < got;) {
      const struct inotify_event *event = (const struct inotify_event *)(events + at);
      if (!repeats(last, event)) handle(event);
      last = event;
      at += (ssize_t)(sizeof *event + event->len);
    }
  }
}
