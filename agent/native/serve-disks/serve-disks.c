/*
 * Serves disks to one virtual machine over NFS, and stays: a server that ends is started again,
 * whether an agent is there or not. It ends with the machine, or with its control group.
 *
 * Usage: serve-disks MACHINE START NETWORK PROGRAMS CONFIGURATION SINCE GROUPS GROUP…
 *                    [CONTENTS SUBDIRECTORY NAME rw|ro]…
 *   MACHINE is the machine's process, START its time of start in /proc; NETWORK the network
 *   namespace in which the server listens; PROGRAMS a tree with the server and its libraries, and
 *   nothing else of the host; CONFIGURATION the text of the server's configuration; SINCE the time
 *   from which on a guest that recovers its locks has been paused (wal-locks.c), or 0; then the
 *   number of control groups, and the cgroup.procs of each. Descriptor 3 is a pipe on which the
 *   agent reads `ok` once the server listens, or what failed; from descriptor 4 comes the key of
 *   seal-handles.c; descriptor 5 ends when the guest has recovered; from 6 on come the guards that
 *   the host has kept for it.
 *
 * The server reads what a hostile guest sends it, and opens files by handles that the guest chooses
 * (CAP_DAC_READ_SEARCH): of every file system that it sees. So it sees its sandbox's disks and
 * file systems in memory, nothing of the host's, no process but its own, and no other network;
 * seal-handles.c keeps the guest to what was mounted of each disk.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../common/detached-tree.h"
#include "../common/disk-failure.h"
#include "../common/disk-trees.h"
#include "seal-handles.h"
#include "siphash.h"
#include "wal-locks.h"

#define SERVER "/usr/bin/ganesha.nfsd"
#define PRELOADED "LD_PRELOAD=/nfs-preload.so"
#define CONFIGURATION "/run/ganesha.conf"
/* Where the server looks for mounted file systems. */
#define MOUNTED "/run/mtab"
#define LISTENS " 00000000000000000000000000000000:0801 "
#define MEMORY "size=8m,nr_inodes=256,mode=755"

enum {
  FD_REPORT = 3,
  FD_KEY = 4,
  SINCE = 6,
  FIRST_GROUP = 8,
  STAT_BYTES = 1024,
  STAT_START = 22, /* The field of /proc/<pid>/stat. */
  PATH_BYTES = 256,
  HIGHEST_CAPABILITY = 63,
  POLL_MS = 10,
  START_MS_MAX = 20000,
  RESTART_MS = 200,
};

/* Owners, modes and locks as the guest's users would have them, and files by handle. */
static const int kept_capabilities[] = {
    CAP_CHOWN,  CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER,
    CAP_FSETID, CAP_SETGID,       CAP_SETUID,
};

/* For the server: SEAL_KEY and the key's digits. */
static char seal_key[sizeof "SEAL_KEY=" + 2UL * SIPHASH_KEY_BYTES];
/* For the server: RECOVERS_SINCE and its time. */
static char recovers_since[sizeof RECOVERS_SINCE + 32];

static void pause_for(long milliseconds) {
  const struct timespec pause = {.tv_sec = milliseconds / 1000,
                                 .tv_nsec = milliseconds % 1000 * 1000000L};
  nanosleep(&pause, NULL);
}

static void write_text(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text)) fail(FAILED, path, errno);
  close(fd);
}

static void must_mount(const char *source, const char *target, const char *type,
                       unsigned long flags, const char *data) {
  if (mount(source, target, type, flags, data) != 0) fail(FAILED, target, errno);
}

static void make_devices(void) {
  must_mount("tmpfs", "dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=64k,mode=755");
  if (mknod("dev/null", S_IFCHR | 0666, makedev(1, 3)) != 0 || chmod("dev/null", 0666) != 0 ||
      mknod("dev/urandom", S_IFCHR | 0444, makedev(1, 9)) != 0)
    fail(FAILED, "devices", errno);
}

static void show_disks(const struct disk_mount *mounts, int count) {
  char path[PATH_BYTES], line[2 * PATH_BYTES];
  must_mount("tmpfs", &SERVED_DISKS[1], "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
             "size=64k,mode=755");
  for (int index = 0; index < count; index++) {
    snprintf(path, sizeof path, "%s/%s", &SERVED_DISKS[1], mounts[index].target);
    if (mkdir(path, 0755) != 0 ||
        move_mount(mounts[index].tree, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH) != 0)
      fail(FAILED, path, errno);
    close(mounts[index].tree);
    snprintf(line, sizeof line, "%s /%s ext4 rw 0 0\n", mounts[index].target, path);
    write_text(&MOUNTED[1], line);
  }
}

/* The tree of programs becomes the root, of this mount namespace only. */
static void enter_root(const char *programs, const char *configuration,
                       const struct disk_mount *mounts, int count) {
  const uint64_t closed = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
  int tree = clone_tree(AT_FDCWD, programs, closed, -1);
  if (tree < 0) fail(FAILED, programs, errno);
  if (unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS) != 0) fail(FAILED, "namespaces", errno);
  must_mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
  if (move_mount(tree, "", AT_FDCWD, programs, MOVE_MOUNT_F_EMPTY_PATH) != 0 ||
      chdir(programs) != 0)
    fail(FAILED, "root", errno);
  close(tree);
  must_mount("tmpfs", "run", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, MEMORY);
  write_text(&CONFIGURATION[1], configuration);
  make_devices();
  show_disks(mounts, count);
  if (syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0 || chdir("/") != 0)
    fail(FAILED, "root", errno);
  if (sethostname("berth", strlen("berth")) != 0) fail(FAILED, "host name", errno);
}

static bool is_kept(int capability) {
  for (size_t index = 0; index < sizeof kept_capabilities / sizeof *kept_capabilities; index++)
    if (kept_capabilities[index] == capability) return true;
  return false;
}

/* The agent reads the report until nobody has its end of the pipe. */
static void forget_report(void) {
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) _exit(1);
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) dup2(null, fd);
}

/* Files are opened by handle only where seal-handles.c has found the right seal. */
static void require_seals(void) {
  struct sock_filter checks[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_open_by_handle_at, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SEALED_CALL, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
  };
  struct sock_fprog filter = {.len = sizeof checks / sizeof *checks, .filter = checks};
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0) _exit(1);
}

static _Noreturn void become_server(void) {
  sigset_t none;
  char *const arguments[] = {SERVER, "-F",       "-f", CONFIGURATION, "-L", "/run/log",
                             "-p",   "/run/pid", "-N", "NIV_WARN",    NULL};
  char *const environment[] = {"LC_ALL=C", PRELOADED, seal_key, recovers_since, NULL};
  const struct rlimit files = {.rlim_cur = SERVER_FILES_MAX, .rlim_max = SERVER_FILES_MAX};
  const struct rlimit no_dump = {0};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  forget_report();
  if (setrlimit(RLIMIT_NOFILE, &files) != 0 || setrlimit(RLIMIT_CORE, &no_dump) != 0) _exit(1);
  for (int capability = 0; capability <= HIGHEST_CAPABILITY; capability++)
    if (!is_kept(capability) && prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 && errno != EINVAL)
      _exit(1);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) _exit(1);
  require_seals();
  umask(0);
  execve(SERVER, arguments, environment);
  _exit(1);
}

/* The first process of its own namespace: it can signal no other. */
static pid_t start_server(void) {
  pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, NULL, NULL, NULL, 0);
  if (pid == 0) become_server();
  if (pid < 0) fail(FAILED, "server", errno);
  return pid;
}

/* The kernel's table of sockets of the network namespace, which has one for this port. */
static bool listens(int table) {
  static char text[16 * 1024];
  ssize_t got = pread(table, text, sizeof text - 1, 0);
  text[got < 0 ? 0 : got] = '\0';
  return strstr(text, LISTENS) != NULL;
}

/* The first descriptor that was not passed to this process. */
static int first_free(void) {
  int fd = FD_KEPT_GUARDS;
  while (fcntl(fd, F_GETFD) >= 0) fd++;
  return fd;
}

static void await_server(pid_t server, int table) {
  int status;
  for (long waited = 0; !listens(table); waited += POLL_MS) {
    if (waited > START_MS_MAX) fail(FAILED, "the server does not listen", ETIMEDOUT);
    if (waitpid(server, &status, WNOHANG) != 0) fail(FAILED, "the server ended", ECHILD);
    pause_for(POLL_MS);
  }
}

/* The server is killed with this process (PR_SET_PDEATHSIG). */
static _Noreturn void keep_serving(int machine, int ended) {
  struct pollfd watched[] = {{.fd = machine, .events = POLLIN}, {.fd = ended, .events = POLLIN}};
  struct signalfd_siginfo signal_info;
  for (;;) {
    if (poll(watched, 2, -1) < 0 && errno != EINTR) fail(FAILED, "poll", errno);
    if (watched[0].revents != 0) _exit(0);
    /* A child that only stopped, or went on, tells so too. */
    if (read(ended, &signal_info, sizeof signal_info) < 0 || waitpid(-1, NULL, WNOHANG) <= 0)
      continue;
    pause_for(RESTART_MS);
    start_server();
  }
}

/* A descriptor that tells the end of the machine, if it has not ended. */
static int watch_machine(const char *pid, const char *start) {
  char path[PATH_BYTES], text[STAT_BYTES], *rest;
  int machine = (int)syscall(SYS_pidfd_open, atoi(pid), 0);
  snprintf(path, sizeof path, "/proc/%s/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (machine < 0 || got <= 0) fail(FAILED, "machine", ESRCH);
  close(fd);
  text[got] = '\0';
  /* The second field is the name, in parentheses, and may contain anything. */
  rest = strrchr(text, ')');
  for (int field = 2; field < STAT_START && rest != NULL; field++) rest = strchr(rest + 1, ' ');
  size_t length = strlen(start);
  if (rest == NULL || strncmp(rest + 1, start, length) != 0 || rest[1 + length] != ' ')
    fail(FAILED, "machine", ESRCH);
  return machine;
}

static void read_key(void) {
  uint8_t key[SIPHASH_KEY_BYTES];
  int written = snprintf(seal_key, sizeof seal_key, "SEAL_KEY=");
  if (read(FD_KEY, key, sizeof key) != sizeof key) fail(FAILED, "key", EINVAL);
  close(FD_KEY);
  for (size_t index = 0; index < sizeof key; index++)
    written += snprintf(&seal_key[written], 3, "%02x", key[index]);
}

static int block_end_of_server(void) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGCHLD);
  sigprocmask(SIG_BLOCK, &ends, NULL);
  return signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void enter_network(const char *path) {
  int network = open(path, O_RDONLY | O_CLOEXEC);
  if (network < 0 || setns(network, CLONE_NEWNET) != 0) fail(FAILED, path, errno);
  close(network);
}

int main(int argc, char **argv) {
  struct disk_mount mounts[DISK_MOUNTS_MAX];
  const int free_fd = first_free();
  if (dup2(FD_REPORT, STDERR_FILENO) < 0) return FAILED;
  close(FD_REPORT);
  int groups = argc < FIRST_GROUP ? argc : atoi(argv[FIRST_GROUP - 1]);
  if (groups < 1 || FIRST_GROUP + groups > argc) fail(FAILED, "serve-disks", EINVAL);
  for (int index = 0; index < groups; index++) write_text(argv[FIRST_GROUP + index], "0");
  setsid();
  signal(SIGHUP, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  read_key();
  snprintf(recovers_since, sizeof recovers_since, RECOVERS_SINCE "=%s", argv[SINCE]);
  int machine = watch_machine(argv[1], argv[2]), ended = block_end_of_server();
  char **disks = &argv[FIRST_GROUP + groups];
  int count = make_disk_trees(argc - FIRST_GROUP - groups, disks, -1, mounts);
  enter_network(argv[3]);
  int table = open("/proc/self/net/tcp6", O_RDONLY | O_CLOEXEC);
  if (table < 0) fail(FAILED, "tcp6", errno);
  enter_root(argv[4], argv[5], mounts, count);
  pid_t server = start_server();
  /* The server has its own; here they would outlive its use of them. */
  if (free_fd > FD_KEPT_GUARDS) close_range(FD_KEPT_GUARDS, (unsigned)free_fd - 1, 0);
  await_server(server, table);
  close(table);
  if (write(STDERR_FILENO, "ok", 2) != 2) return FAILED;
  forget_report();
  keep_serving(machine, ended);
}
