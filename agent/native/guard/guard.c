/*
 * Unmounts an agent's disks when the agent has ended, however it ended. The lease on a disk
 * outlives its holder by a few seconds only. By then the last writes must be on the storage and the
 * disk must be free, or another host would mount a file system that is still in use.
 *
 * Usage: guard GROUP DIRECTORY…
 *   Joins the control group of the agent's helpers (GROUP is its cgroup.procs), which the next
 *   agent empties first, so that no guard ever works beside an agent. Writes one byte to stdout,
 *   then reads stdin, to which the agent never writes: end of file means that the agent has ended.
 *   Then kills the remaining helpers and unmounts everything below the directories but what lies in
 *   their `held/`, each mount in a process of its own, so that one whose storage hangs does not
 *   block the others.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "guard-processes.h"

/* Polling limits: 5 s for the helpers to end, 15 s for mounts to become free. */
enum { PAUSE_MS = 50, LOOKS_AT_HELPERS = 100, LOOKS_AT_MOUNTS = 300 };

#define HELD "held/"

static char paths[MOUNTS_MAX][PATH_BYTES];
static void pause_shortly(void) {
  const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
  nanosleep(&pause, NULL);
}

static bool is_octal(char digit) { return digit >= '0' && digit <= '7'; }

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

/* Disks that sandboxes mount: those outlive the agent, and the next one takes them over. */
static bool is_held(const char *below) { return strncmp(below, HELD, sizeof HELD - 1) == 0; }

static bool is_ours(const char *path, char *const *directories) {
  for (; *directories != NULL; directories++) {
    size_t prefix = strlen(*directories);
    if (strncmp(path, *directories, prefix) == 0 && path[prefix] == '/')
      return !is_held(path + prefix + 1);
  }
  return false;
}

/* Mounts below the directories but for held ones, in the order in which they were made. */
static int list_mounts(char *const *directories) {
  static char line[4 * PATH_BYTES];
  int count = 0;
  FILE *table = fopen("/proc/self/mountinfo", "re");
  if (table == NULL) return -1;
  while (count < MOUNTS_MAX && fgets(line, sizeof line, table) != NULL) {
    char *path = paths[count];
    if (sscanf(line, "%*s %*s %*s %*s %4095s", path) != 1) continue;
    unescape(path);
    if (is_ours(path, directories)) count++;
  }
  fclose(table);
  return count;
}

/* Containers end with the agent; their disks are busy until they have. */
static void unmount_all(char *const *directories) {
  for (int looks = 0; looks < LOOKS_AT_MOUNTS; looks++) {
    int count = list_mounts(directories);
    if (count == 0) return;
    for (int i = count - 1; i >= 0; i--) begin_unmounting(paths[i]);
    pause_shortly();
    reap_unmounters();
  }
}

int main(int argc, char **argv) {
  char byte = 0;
  if (argc < 3) return 2;
  /* A signal to the agent's process group must not end its guard. */
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  if (!join_group(argv[1])) return 1;
  if (write(STDOUT_FILENO, &byte, 1) != 1) return 1;
  while (read(STDIN_FILENO, &byte, 1) > 0 || errno == EINTR) errno = 0;
  for (int looks = 0; looks < LOOKS_AT_HELPERS && kill_helpers(argv[1]); looks++) pause_shortly();
  unmount_all(argv + 2);
  return 0;
}
