#define _GNU_SOURCE
#include "user.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wire.h"

/* The files are read here because a static program has no name service of the C library. */
static FILE *open_list(const char *path) {
  struct stat found;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return NULL;
  FILE *file = fstat(fd, &found) == 0 && S_ISREG(found.st_mode) ? fdopen(fd, "r") : NULL;
  if (file == NULL) close(fd);
  return file;
}

/* The highest number means "no change" to the kernel, so it stands for nobody. */
static bool is_number(const char *text, uint32_t *number) {
  char *end;
  errno = 0;
  unsigned long value = strtoul(text, &end, 10);
  if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value >= UINT32_MAX) return false;
  *number = (uint32_t)value;
  return true;
}

static void set_home(struct user *user, const char *home) {
  snprintf(user->home, sizeof user->home, "%s", home == NULL || *home == '\0' ? "/" : home);
}

/* Fills in what /etc/passwd says of a name or number; false when it says nothing. */
static bool find_account(const char *text, bool by_number, struct user *user, char *name,
                         size_t name_size) {
  FILE *file = open_list("/etc/passwd");
  struct passwd *entry = NULL;
  if (file == NULL) return false;
  while ((entry = fgetpwent(file)) != NULL)
    if (by_number ? entry->pw_uid == user->uid : strcmp(entry->pw_name, text) == 0) break;
  if (entry != NULL) {
    user->uid = entry->pw_uid;
    user->gid = entry->pw_gid;
    snprintf(name, name_size, "%s", entry->pw_name);
    set_home(user, entry->pw_dir);
  }
  fclose(file);
  return entry != NULL;
}

static bool find_group(const char *text, gid_t *gid) {
  FILE *file = open_list("/etc/group");
  struct group *entry = NULL;
  if (is_number(text, gid)) {
    if (file != NULL) fclose(file);
    return true;
  }
  if (file == NULL) return false;
  while ((entry = fgetgrent(file)) != NULL && strcmp(entry->gr_name, text) != 0)
    ;
  if (entry != NULL) *gid = entry->gr_gid;
  fclose(file);
  return entry != NULL;
}

static bool is_member(const struct group *entry, const char *name) {
  for (char **member = entry->gr_mem; *member != NULL; member++)
    if (strcmp(*member, name) == 0) return true;
  return false;
}

static void find_memberships(const char *name, struct user *user) {
  FILE *file = open_list("/etc/group");
  struct group *entry;
  if (file == NULL) return;
  while ((entry = fgetgrent(file)) != NULL && user->groups_count < USER_GROUPS_MAX)
    if (is_member(entry, name)) user->groups[user->groups_count++] = entry->gr_gid;
  fclose(file);
}

int find_user(const char *text, struct user *user, const char **step) {
  char copy[LIMIT_USER_MAX + 1], name[LIMIT_USER_MAX + 1] = "";
  *user = (struct user){0};
  *step = "user";
  set_home(user, *text == '\0' ? "/root" : NULL);
  snprintf(copy, sizeof copy, "%s", *text == '\0' ? "0:0" : text);
  char *group = strchr(copy, ':');
  if (group != NULL) *group++ = '\0';
  bool by_number = is_number(copy, &user->uid);
  bool is_listed = find_account(copy, by_number, user, name, sizeof name);
  if (!is_listed && !by_number) return ENOENT;
  *step = "group";
  if (group != NULL && *group != '\0') return find_group(group, &user->gid) ? 0 : ENOENT;
  if (is_listed) find_memberships(name, user);
  return 0;
}

int become_user(const struct user *user) {
  if (setgroups(user->groups_count, user->groups) != 0) return errno;
  if (setresgid(user->gid, user->gid, user->gid) != 0) return errno;
  return setresuid(user->uid, user->uid, user->uid) == 0 ? 0 : errno;
}
