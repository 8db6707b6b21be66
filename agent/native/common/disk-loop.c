#define _GNU_SOURCE
#include "disk-loop.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/loop.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "disk-failure.h"

enum { PATH_BYTES = 4096, LOOP_NUMBERS = 1024, POLL_MS = 10 };

static long now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Polls, because a process that sleeps in flock(2) could not time out. */
void lock_image(int image, const char *path, int wait_ms) {
  const struct timespec pause = {.tv_nsec = POLL_MS * 1000000L};
  long until = now_ms() + wait_ms;
  while (flock(image, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) fail_on_storage(path, errno);
    if (now_ms() >= until) fail(IN_USE, path, EBUSY);
    nanosleep(&pause, NULL);
  }
}

static int open_control(void) {
  int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
  if (control < 0) fail(FAILED, "/dev/loop-control", errno);
  return control;
}

/* -1 also when another agent of this machine, or a sweep, took the device meanwhile. */
static int try_number(int control, int image, const char *path, unsigned flags, int number) {
  char device[64];
  if (ioctl(control, LOOP_CTL_ADD, (long)number) < 0) return -1;
  snprintf(device, sizeof device, "/dev/loop%d", number);
  int loop = open(device, (flags & LO_FLAGS_READ_ONLY ? O_RDONLY : O_RDWR) | O_CLOEXEC);
  if (loop < 0) return -1;
  struct loop_config config = {.fd = (unsigned)image,
                               .info = {.lo_flags = LO_FLAGS_AUTOCLEAR | flags}};
  strncpy((char *)config.info.lo_file_name, path, LO_NAME_SIZE - 1);
  if (ioctl(loop, LOOP_CONFIGURE, &config) == 0) return loop;
  int error = errno;
  close(loop);
  errno = error;
  return -1;
}

/* -1 when every number is taken. */
static int try_numbers(int image, const char *path, int first, unsigned flags, int *number) {
  int loop = -1, control = open_control();
  /* Starts at a different one each time: on a host with many disks the first ones are taken. */
  int offset = getpid() % LOOP_NUMBERS;
  for (int tries = 0; loop < 0 && tries < LOOP_NUMBERS; tries++) {
    *number = first + (offset + tries) % LOOP_NUMBERS;
    loop = try_number(control, image, path, flags, *number);
    bool is_taken = errno == EEXIST || errno == EBUSY || errno == ENXIO || errno == ENOENT;
    if (loop < 0 && !is_taken) fail(FAILED, "loop device", errno);
  }
  close(control);
  return loop;
}

int attach_loop(int image, const char *path, int first, unsigned flags, int *number) {
  int loop = try_numbers(image, path, first, flags, number);
  if (loop >= 0) return loop;
  sweep_loops(first);
  loop = try_numbers(image, path, first, flags, number);
  if (loop < 0) fail(NO_LOOP, "every loop device of this host is taken", EBUSY);
  return loop;
}

/* The path of the attached file as the kernel shows it; empty when nothing is attached. */
static void read_backing_file(const char *name, char file[PATH_BYTES]) {
  char path[PATH_BYTES];
  file[0] = '\0';
  snprintf(path, sizeof path, "/sys/block/%s/loop/backing_file", name);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ssize_t length = read(fd, file, PATH_BYTES - 1);
  close(fd);
  file[length > 0 ? length : 0] = '\0';
  file[strcspn(file, "\n")] = '\0';
}

/* The last two components of a path. */
static const char *last_two_names(const char *path) {
  const char *end = strrchr(path, '/');
  while (end != NULL && end > path && end[-1] != '/') end--;
  return end == NULL ? path : end;
}

/*
 * By inode where the names are alike, for a file has one name in each mount namespace. Only then,
 * so that no file of another disk is touched: its storage may hang.
 */
static bool is_same_file(const char *path, const char *file, const struct stat *image) {
  struct stat found;
  if (strcmp(path, file) == 0) return true;
  if (strcmp(last_two_names(path), last_two_names(file)) != 0) return false;
  return stat(file, &found) == 0 && found.st_dev == image->st_dev && found.st_ino == image->st_ino;
}

/* The number of a loop device from `first` to `last`, other than `except`, on the image; or -1. */
static int find_loop(int image, const char *path, int first, int last, int except) {
  static char file[PATH_BYTES];
  struct stat status;
  struct dirent *entry;
  int number, found = -1;
  DIR *devices = opendir("/sys/block");
  if (devices == NULL) fail(FAILED, "/sys/block", errno);
  if (fstat(image, &status) != 0) fail_on_storage(path, errno);
  while (found < 0 && (entry = readdir(devices)) != NULL) {
    if (sscanf(entry->d_name, "loop%d", &number) != 1 || number == except) continue;
    if (number < first || number > last) continue;
    read_backing_file(entry->d_name, file);
    if (file[0] != '\0' && is_same_file(path, file, &status)) found = number;
  }
  closedir(devices);
  return found;
}

int other_loop_on(int image, const char *path, int own) {
  return find_loop(image, path, 0, INT_MAX, own);
}

int loop_of_host_on(int image, const char *path, int first) {
  return find_loop(image, path, first, first + LOOP_NUMBERS - 1, -1);
}

void sweep_loops(int first) {
  char path[64];
  struct dirent *entry;
  int number, control = open_control();
  DIR *devices = opendir("/sys/block");
  if (devices == NULL) fail(FAILED, "/sys/block", errno);
  while ((entry = readdir(devices)) != NULL) {
    if (sscanf(entry->d_name, "loop%d", &number) != 1) continue;
    if (number < first || number >= first + LOOP_NUMBERS) continue;
    snprintf(path, sizeof path, "/sys/block/loop%d/loop", number);
    /* The kernel refuses to remove a device that is in use after all. */
    if (access(path, F_OK) != 0) ioctl(control, LOOP_CTL_REMOVE, (long)number);
  }
  closedir(devices);
  close(control);
}
