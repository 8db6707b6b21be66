/*
 * The shim from its arguments on, on both sides of its fork, with any contents of what it reads and
 * a kernel whose calls fail: no machine becomes root, and nothing is confined less than asked for.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "../../../../agent/native/shim/shim-confine.h"
#include "../fuzz.h"
#include "../kernel.h"
#include "../processes.h"

enum { KIND_TEXT = KIND_OWN, TEXTS_MAX = 40, TEXT_MAX = 600 };

static bool has_user, has_groups, has_no_new_privileges, has_root;

int kind_of_path(const char *path) { return strchr(path, '/') != NULL ? KIND_TEXT : KIND_PLAIN; }

ssize_t read_kind(int fd, int kind, void *into, size_t length) {
  uint8_t how = take_u8();
  if (kind == KIND_TEXT || how < 0x80) return (ssize_t)take_into(into, how < length ? how : length);
  size_t count = how == 0xff ? length : take_up_to((uint32_t)length);
  clock_us += take_u8() * 10000u;
  return memset(into, how, count), (ssize_t)count;
}

int fake_unshare(int flags) { return (void)flags, call_fails() ? -1 : 0; }
int fake_setns(int fd, int type) { return kind_of(fd), (void)type, call_fails() ? -1 : 0; }
int fake_ioctl(int fd, unsigned long request, ...) {
  return kind_of(fd), (void)request, call_fails() ? -1 : 0;
}
int fake_bind(int fd, const struct sockaddr *address, socklen_t length) {
  const struct sockaddr_un *local = (const void *)address;
  CHECK(length == sizeof *local && strnlen(local->sun_path, sizeof local->sun_path) > 0);
  return kind_of(fd), call_fails() ? -1 : 0;
}
int fake_take_lock(const char *path) {
  CHECK(path[0] == '/');
  if (call_fails()) return -1;
  return new_fd(KIND_PLAIN, 0);
}
int fake_listen(int fd, int backlog) { return kind_of(fd), (void)backlog, call_fails() ? -1 : 0; }
int fake_sethostname(const char *name, size_t length) { return strlen(name) == length ? 0 : -1; }
ssize_t fake_readlink(const char *path, char *into, size_t size) {
  size_t length = take_up_to(8191);
  CHECK(path[0] != '\0');
  if (length > size) length = size;
  return call_fails() ? -1 : (memset(into, 'l', length), (ssize_t)length);
}
int fake_mkdir(const char *path, mode_t mode) {
  return (void)mode, path[0] && !call_fails() ? 0 : -1;
}
int fake_setgroups(size_t count, const gid_t *groups) {
  return has_groups = count == 0, (void)groups, call_fails() ? -1 : 0;
}
int fake_setresgid(gid_t real, gid_t effective, gid_t saved) {
  CHECK(real != 0 && real != (gid_t)-1 && effective == real && saved == real);
  return call_fails() ? -1 : 0;
}
int fake_setresuid(uid_t real, uid_t effective, uid_t saved) {
  CHECK(real != 0 && real != (uid_t)-1 && effective == real && saved == real && has_groups);
  if (call_fails()) return -1;
  return has_user = true, 0;
}
int fake_prctl(int option, ...) {
  if (call_fails()) return -1;
  if (option == 38) has_no_new_privileges = true; /* PR_SET_NO_NEW_PRIVS */
  return 0;
}
long fake_syscall(long number, ...) {
  if (call_fails()) return -1;
  return (void)number, has_root = true, 0;
}
int fake_execve(const char *path, char *const *arguments, char *const *environment) {
  CHECK(has_user && has_groups && has_no_new_privileges && has_root && path == arguments[0]);
  for (; *arguments != NULL; arguments++) CHECK(strlen(*arguments) < TEXT_MAX);
  for (; *environment != NULL; environment++) CHECK(strchr(*environment, '=') != NULL);
  for (int fd = 0; fd < 5; fd++) CHECK(kind_of(fd) != KIND_NOTHING);
  if (!call_fails()) stop_subject(0);
  return -1;
}

static char texts[TEXTS_MAX][TEXT_MAX];

/* Options that there are, with values of the input: texts, numbers, and numbers too large. */
static int take_arguments(char **arguments) {
  static const char *const names[] = {"--run",
                                      "--guest",
                                      "--uid",
                                      "--file-bytes",
                                      "--disks",
                                      "--base",
                                      "--preload",
                                      "--network",
                                      "--tap",
                                      "--keeper-group",
                                      "--machine-group",
                                      "--oom-counter",
                                      "--passed",
                                      "--kvm",
                                      "--",
                                      "x"};
  static const char *const numbers[] = {"0",          "1",          "8",
                                        "9",          "100000",     "4294967295",
                                        "4294967296", "4294967297", "9223372036854775807",
                                        "-1",         "1x",         ""};
  static const char *const needed[] = {"shim",  "--run",  "/run/m",       "--guest", "/guest",
                                       "--uid", "100000", "--file-bytes", "1000000"};
  int count = 0;
  bool is_usual = take_u8() & 1;
  for (; count < (is_usual ? 9 : 1); count++) strcpy(texts[count], needed[count]);
  while (!input_is_empty() && count < TEXTS_MAX - 3) {
    const char *name = names[take_u8() % 16];
    strcpy(texts[count++], name);
    if (strcmp(name, "--") == 0) break;
    uint8_t how = take_u8();
    if (how < 0x80) {
      strcpy(texts[count++], numbers[how % 12]);
    } else {
      size_t length = how < 0xf0 ? how & 15u : 500;
      memset(texts[count], 'x', length);
      take_into(texts[count], length < 16 ? length : 16);
      texts[count++][length] = '\0';
    }
  }
  if (strcmp(texts[count - 1], "--") == 0) strcpy(texts[count++], "/usr/bin/qemu");
  for (int index = 0; index < count; index++) arguments[index] = texts[index];
  arguments[count] = NULL;
  return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  char *arguments[TEXTS_MAX + 1];
  begin_input(bytes, length);
  begin_kernel(20);
  begin_processes();
  has_user = has_groups = has_no_new_privileges = has_root = false;
  allow_failures(take_u8() & 1);
  run_subject(take_arguments(arguments), arguments);
  end_input();
  return 0;
}
