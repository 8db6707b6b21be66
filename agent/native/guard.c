/*
 * Unmounts an agent's disks when the agent is gone, however it ended. The lease on a disk outlives
 * its holder by some seconds only: until then its last writes must be on the storage and the disk
 * must be free, or another host would take a file system that is still in use.
 *
 * Usage: guard <lock file> <directory>
 *   Writes one byte to stdout once it is the only guard of the directory: a new agent that waits
 *   for it knows that its predecessor's guard is done. Then reads stdin, which the agent never
 *   writes to: its end is the agent's end, and every mount below the directory is unmounted.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

enum { MOUNTS_MAX = 8192, PATH_BYTES = 4096, ATTEMPTS = 300, PAUSE_MS = 50 };

static bool is_octal(char digit) {
  return digit >= '0' && digit <= '7';
}

/* Undoes the octal escapes of proc_pid_mountinfo(5): a backslash and three digits. */
static void unescape(char *text) {
  char *to = text;
  for (const char *from = text; *from != '\0'; to++) {
    if (from[0] == '\\' && is_octal(from[1]) && is_octal(from[2]) && is_octal(from[3])) {
      *to = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
      from += 4;
    } else {
      *to = *from++;
    }
  }
  *to = '\0';
}

/* Mounts below the directory, in the order in which they were made. */
static int list_mounts(const char *directory, char (*paths)[PATH_BYTES]) {
  static char line[4 * PATH_BYTES];
  size_t prefix = strlen(directory);
  int count = 0;
  FILE *table = fopen("/proc/self/mountinfo", "re");
  if (table == NULL) return -1;
  while (count < MOUNTS_MAX && fgets(line, sizeof line, table) != NULL) {
    char *path = paths[count];
    if (sscanf(line, "%*s %*s %*s %*s %4095s", path) != 1) continue;
    unescape(path);
    if (strncmp(path, directory, prefix) == 0 && path[prefix] == '/') count++;
  }
  fclose(table);
  return count;
}

static int unmount_all(const char *directory) {
  static char paths[MOUNTS_MAX][PATH_BYTES];
  int count = list_mounts(directory, paths);
  int left = 0;
  for (int i = count - 1; i >= 0; i--)
    if (umount2(paths[i], UMOUNT_NOFOLLOW) != 0 && errno == EBUSY) left++;
  return count < 0 ? 1 : left;
}

int main(int argc, char **argv) {
  const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
  char byte = 0;
  if (argc != 3) return 2;
  /* A signal meant for the agent's process group must not take its guard away. */
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  int lock = open(argv[1], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0 || flock(lock, LOCK_EX) != 0) return 1;
  if (write(STDOUT_FILENO, &byte, 1) != 1) return 1;
  while (read(STDIN_FILENO, &byte, 1) > 0 || errno == EINTR)
    errno = 0;
  /* The containers end with the agent; until they have, their disks are busy. */
  for (int i = 0; i < ATTEMPTS && unmount_all(argv[2]) > 0; i++) nanosleep(&pause, NULL);
  return 0;
}
