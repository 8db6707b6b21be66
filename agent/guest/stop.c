#define _GNU_SOURCE
#include "stop.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KERNEL_THREAD = 0x00200000 }; /* PF_KTHREAD of linux/sched.h. */

static pid_t *stopped;
static size_t stopped_count, stopped_room;

/* The letter of its state; '\0' when it is gone or a kernel thread. */
static char state_of(pid_t pid) {
  char path[32], text[512];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return '\0';
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  text[got < 0 ? 0 : got] = '\0';
  char *name_end = strrchr(text, ')'), state;
  unsigned long flags;
  if (name_end == NULL) return '\0';
  if (sscanf(name_end + 1, " %c %*d %*d %*d %*d %*d %lu", &state, &flags) != 2) return '\0';
  if ((flags & KERNEL_THREAD) != 0) return '\0';
  return state;
}

static bool remember(pid_t pid) {
  if (stopped_count == stopped_room) {
    size_t room = stopped_room == 0 ? 64 : 2 * stopped_room;
    pid_t *grown = realloc(stopped, room * sizeof *stopped);
    if (grown == NULL) return false;
    stopped = grown;
    stopped_room = room;
  }
  stopped[stopped_count++] = pid;
  return true;
}

static bool is_remembered(pid_t pid) {
  for (size_t index = 0; index < stopped_count; index++)
    if (stopped[index] == pid) return true;
  return false;
}

bool stop_all(void) {
  DIR *processes = opendir("/proc");
  if (processes == NULL) return false;
  bool rest = true;
  for (struct dirent *entry; (entry = readdir(processes)) != NULL;) {
    pid_t pid = atoi(entry->d_name);
    if (pid <= 1) continue;
    char state = state_of(pid);
    if (state == '\0' || strchr("TtZX", state) != NULL) continue;
    /*
     * State D: in an uninterruptible system call, from which it does not return before it stops. A
     * parent in vfork(2) even waits there for a child that has been stopped.
     */
    bool is_told = is_remembered(pid);
    if (state != 'D' || !is_told) rest = false;
    if (is_told || remember(pid)) kill(pid, SIGSTOP);
  }
  closedir(processes);
  return rest;
}

void continue_stopped(void) {
  for (size_t index = 0; index < stopped_count; index++) kill(stopped[index], SIGCONT);
  free(stopped);
  stopped = NULL;
  stopped_count = stopped_room = 0;
}
