#define _GNU_SOURCE
#include "guard-processes.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

/* Running processes, and the mount that each is unmounting. */
static struct attempt {
  pid_t pid;
  char path[PATH_BYTES];
} attempts[MOUNTS_MAX];

bool join_group(const char *group) {
  int fd = open(group, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool joined = write(fd, "0", 1) == 1;
  close(fd);
  return joined;
}

bool kill_helpers(const char *group) {
  bool found = false;
  int pid;
  FILE *members = fopen(group, "re");
  if (members == NULL) return false;
  while (fscanf(members, "%d", &pid) == 1) {
    if (pid == getpid()) continue;
    kill(pid, SIGKILL);
    found = true;
  }
  fclose(members);
  return found;
}

void reap_unmounters(void) {
  pid_t pid;
  while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
    for (int i = 0; i < MOUNTS_MAX; i++)
      if (attempts[i].pid == pid) attempts[i].pid = 0;
}

void begin_unmounting(const char *path) {
  struct attempt *free_one = NULL;
  for (int i = 0; i < MOUNTS_MAX; i++) {
    if (attempts[i].pid != 0 && strcmp(attempts[i].path, path) == 0) return;
    if (attempts[i].pid == 0 && free_one == NULL) free_one = &attempts[i];
  }
  if (free_one == NULL) return;
  pid_t pid = fork();
  if (pid == 0) _exit(umount2(path, UMOUNT_NOFOLLOW) == 0 ? 0 : 1);
  if (pid < 0) return;
  free_one->pid = pid;
  snprintf(free_one->path, sizeof free_one->path, "%s", path);
}
