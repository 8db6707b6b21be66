/* The user that a process runs as, found in the files of the guest's own root. */
#pragma once
#include <stddef.h>
#include <sys/types.h>

enum { USER_GROUPS_MAX = 64, USER_HOME_MAX = 255 };

struct user {
  uid_t uid;
  gid_t gid;
  gid_t groups[USER_GROUPS_MAX]; /* Supplementary groups. */
  size_t groups_count;
  char home[USER_HOME_MAX + 1];
};

/*
 * Finds a user by the text of an OCI image's configuration: a name or number, optionally followed
 * by a colon and the name or number of a group. The empty text is root. A number need not be listed
 * anywhere; a name must be. 0, or an error number and the step that failed.
 */
int find_user(const char *text, struct user *user, const char **step);
/* Gives up root for this user. 0, or an error number. */
int become_user(const struct user *user);
