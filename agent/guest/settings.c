#define _GNU_SOURCE
#include "settings.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "connections.h"
#include "freeze.h"
#include "root.h"
#include "spawn.h"

enum {
  ID_TEXT_BYTES = 2 * ID_BYTES + 6, /* With hyphens, a newline and NUL. */
  US_PER_SECOND = 1000000,
};

/* The greatest number that the host reads exactly. */
#define FIELD_MAX ((UINT64_C(1) << 53) - 1)

/* Files with this first line were written here and may be rewritten; others are left alone. */
#define MARK "# Written by Berth.\n"
#define BOOT_ID_FILE "/run/berth/boot-id"
#define GENERATION_FILE "/run/berth/generation"

static bool kernel_is_kept, configured;

void keep_kernel(void) { kernel_is_kept = true; }

bool is_configured(void) { return configured; }

static int write_file(const char *path, int flags, const char *text) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | flags, 0644);
  if (fd < 0) return errno;
  ssize_t wrote = write(fd, text, strlen(text));
  int error = wrote == (ssize_t)strlen(text) ? 0 : errno;
  close(fd);
  return error;
}

/* Unchanged files are not rewritten: after a restore the first use of anything is slow. */
static bool has_text(const char *path, const char *text) {
  char present[512];
  int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  ssize_t got = read(fd, present, sizeof present);
  close(fd);
  return got == (ssize_t)strlen(text) && memcmp(present, text, (size_t)got) == 0;
}

/* Rewrites a plain file in place, at each start: cheaper than replacing it. */
static bool overwrite(const char *path, const char *text) {
  struct stat present;
  size_t length = strlen(text);
  int fd = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  bool done = fstat(fd, &present) == 0 && S_ISREG(present.st_mode) && present.st_nlink == 1 &&
              write(fd, text, length) == (ssize_t)length &&
              ((size_t)present.st_size <= length || ftruncate(fd, (off_t)length) == 0);
  close(fd);
  return done;
}

/* Anything but a plain file is replaced by one: it may be a dangling link. */
static int put_file(const char *path, const char *text) {
  char aside[64];
  if (has_text(path, text) || overwrite(path, text)) return 0;
  snprintf(aside, sizeof aside, "%s.berth", path);
  unlink(aside);
  int error = write_file(aside, O_EXCL | O_NOFOLLOW, text);
  if (error == 0 && rename(aside, path) != 0) error = errno;
  return error;
}

static bool is_foreign(const char *path) {
  char start[sizeof MARK] = {0};
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  ssize_t got = read(fd, start, sizeof MARK - 1);
  close(fd);
  return got > 0 && strcmp(start, MARK) != 0;
}

/*
 * The identity that was set last. After a pause the same one comes again: nothing is written then,
 * because users may have changed the files since, and because each step is slow in a guest that was
 * just restored.
 */
static struct {
  char hostname[LIMIT_HOSTNAME_MAX + 1];
  uint8_t machine_id[ID_BYTES], boot_id[ID_BYTES];
} known;

static bool is_known(const struct settings *settings) {
  return strcmp(known.hostname, settings->hostname) == 0 &&
         memcmp(known.machine_id, settings->machine_id, ID_BYTES) == 0 &&
         memcmp(known.boot_id, settings->boot_id, ID_BYTES) == 0;
}

static void know(const struct settings *settings) {
  snprintf(known.hostname, sizeof known.hostname, "%s", settings->hostname);
  memcpy(known.machine_id, settings->machine_id, ID_BYTES);
  memcpy(known.boot_id, settings->boot_id, ID_BYTES);
}

/* In a container the host has set it, because nobody inside may. */
static bool has_hostname(const char *name) {
  char present[LIMIT_HOSTNAME_MAX + 2] = {0};
  return gethostname(present, sizeof present - 1) == 0 && strcmp(present, name) == 0;
}

static int set_hostname(const struct settings *settings) {
  char line[LIMIT_HOSTNAME_MAX + 2], hosts[256];
  if (!has_hostname(settings->hostname) &&
      sethostname(settings->hostname, strlen(settings->hostname)) != 0)
    return errno;
  snprintf(line, sizeof line, "%s\n", settings->hostname);
  int error = put_file("/etc/hostname", line);
  if (error != 0 || is_foreign("/etc/hosts")) return error;
  snprintf(hosts, sizeof hosts, "%s127.0.0.1 localhost\n::1 localhost\n127.0.1.1 %s\n", MARK,
           settings->hostname);
  return put_file("/etc/hosts", hosts);
}

static void id_text(const uint8_t *id, bool hyphens, char *text) {
  for (int index = 0; index < ID_BYTES; index++) {
    if (hyphens && index >= 4 && index <= 10 && index % 2 == 0) *text++ = '-';
    text += sprintf(text, "%02x", id[index]);
  }
  snprintf(text, 2, "\n");
}

/*
 * The kernel's boot id cannot be set, and a fork inherits its parent's. So a file of our own is
 * mounted over it, which later settings rewrite. The generation is the same id in a plain file,
 * which programs can watch: it changes in every copy, and not by a pause.
 */
static int set_ids(const struct settings *settings) {
  static const char target[] = "/proc/sys/kernel/random/boot_id";
  char text[ID_TEXT_BYTES];
  id_text(settings->machine_id, false, text);
  int error = put_file("/etc/machine-id", text);
  if (error != 0) return error;
  if (mkdir("/run/berth", 0755) != 0 && errno != EEXIST) return errno;
  id_text(settings->boot_id, true, text);
  error = put_file(BOOT_ID_FILE, text);
  if (error == 0) error = put_file(GENERATION_FILE, text);
  if (error != 0) return error;
  struct stat ours, shown;
  if (stat(BOOT_ID_FILE, &ours) != 0 || stat(target, &shown) != 0) return errno;
  if (ours.st_dev == shown.st_dev && ours.st_ino == shown.st_ino) return 0;
  return mount(BOOT_ID_FILE, target, NULL, MS_BIND, NULL) == 0 ? 0 : errno;
}

uint64_t time_by(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  uint64_t us = (uint64_t)now.tv_sec * US_PER_SECOND + (uint64_t)now.tv_nsec / 1000;
  return us < FIELD_MAX ? us : FIELD_MAX; /* Root may have set any year. */
}

static int set_time(uint64_t us) {
  if (kernel_is_kept) return 0;
  struct timespec now = {.tv_sec = (time_t)(us / US_PER_SECOND),
                         .tv_nsec = (long)(us % US_PER_SECOND) * 1000};
  return clock_settime(CLOCK_REALTIME, &now) == 0 ? 0 : errno;
}

int set_clock_by_zero(uint64_t zero_us) { return set_time(zero_us + time_by(CLOCK_MONOTONIC)); }

static int set_clock(const struct settings *settings) { return set_time(settings->clock_us); }

/* Credits the entropy and reseeds at once, so that the next random byte depends on it. */
static int add_entropy(const struct settings *settings) {
  if (kernel_is_kept) return 0;
  struct {
    struct rand_pool_info info;
    uint8_t bytes[LIMIT_ENTROPY_MAX];
  } pool = {.info = {.entropy_count = (int)settings->entropy_length * 8,
                     .buf_size = (int)settings->entropy_length}};
  memcpy(pool.info.buf, settings->entropy, settings->entropy_length);
  int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  bool done = ioctl(fd, RNDADDENTROPY, &pool) == 0 && ioctl(fd, RNDRESEEDCRNG) == 0;
  int error = done ? 0 : errno;
  close(fd);
  explicit_bzero(&pool, sizeof pool);
  return error;
}

/* Images may be without them. What cannot be made is missed by those who need it. */
static void make_usual_directories(void) {
  mkdir("/etc", 0755);
  if (mkdir("/tmp", 0755) == 0) chmod("/tmp", 01777);
}

static int set_identity(const struct settings *settings) {
  if (is_known(settings)) return 0;
  make_usual_directories();
  int error = set_hostname(settings);
  if (error == 0) error = set_ids(settings);
  if (error == 0) know(settings);
  return error;
}

static int set_network(const struct settings *settings) {
  static uint32_t resolver;
  int error = 0;
  if (settings->network.interface[0] != '\0') error = configure_network(&settings->network);
  /* Frozen, this is a copy, or was paused: its connections with others have no other end. */
  if (is_frozen() && settings->network.gateway != 0)
    end_connections(settings->network.address, settings->network.gateway);
  if (error != 0 || settings->resolver == resolver) return error;
  const uint8_t *part = (const uint8_t *)&settings->resolver;
  char text[128];
  snprintf(text, sizeof text, "%snameserver %d.%d.%d.%d\n", MARK, part[0], part[1], part[2],
           part[3]);
  error = put_file("/etc/resolv.conf", text);
  if (error == 0) resolver = settings->resolver;
  return error;
}

static int set_root(const struct settings *settings) {
  if (settings->root_device[0] == '\0') return 0;
  return switch_root(settings->root_device, settings->root_type);
}

static int set_defaults(const struct settings *settings) {
  const struct process_defaults defaults = {
      .environment = settings->environment,
      .environment_length = settings->environment_length,
      .directory = settings->directory,
      .user = settings->user,
  };
  return set_process_defaults(&defaults);
}

int apply_settings(const struct settings *settings, const char **step) {
  /* Entropy before any process can use it; the root before the files that lie on it. */
  static const struct {
    const char *name;
    int (*apply)(const struct settings *);
  } steps[] = {{"clock", set_clock},       {"entropy", add_entropy}, {"root", set_root},
               {"identity", set_identity}, {"network", set_network}, {"defaults", set_defaults}};
  for (size_t index = 0; index < sizeof steps / sizeof *steps; index++) {
    int error = steps[index].apply(settings);
    *step = steps[index].name;
    if (error != 0) return error;
  }
  configured = true;
  return 0;
}
