/*
 * Confines the process of a machine before it becomes QEMU. QEMU emulates devices for an untrusted
 * guest; a guest that takes QEMU over must find nothing of the host. The process gets a user and a
 * root of its own, sees no other process, has no network but the tap, no privilege and no way to
 * gain one. QEMU's own system call filter comes on top.
 */
#define _GNU_SOURCE
#include "shim-confine.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, FILES_MAX = 256, CAPABILITIES_MAX = 64, OOM_SCORE = 500 };

static struct failure failed(const char *step) {
  struct failure failure = {.error = errno};
  snprintf(failure.step, sizeof failure.step, "%s", step);
  return failure;
}

static const struct failure done = {0};

/* When the host runs out of memory, a machine is killed before the services of all machines. */
static void prefer_as_victim(void) {
  char text[16];
  int length = snprintf(text, sizeof text, "%d", OOM_SCORE);
  int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  if (write(fd, text, (size_t)length) < 0) errno = 0; /* The inherited score stays. */
  close(fd);
}

/* TUNSETIFF would create a missing interface; that of the slot must exist already. */
static bool has_interface(const char *name) {
  struct ifreq request = {0};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
  bool found = ioctl(fd, SIOCGIFINDEX, &request) == 0;
  close(fd);
  return found;
}

static struct failure enter_network(const struct options *options, int *tap) {
  struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
  *tap = -1;
  if (options->network == NULL) return unshare(CLONE_NEWNET) == 0 ? done : failed("network");
  int namespace = open(options->network, O_RDONLY | O_CLOEXEC);
  if (namespace < 0) return failed("network namespace");
  if (setns(namespace, CLONE_NEWNET) != 0) return failed("network namespace");
  close(namespace);
  if (!has_interface(options->tap)) return failed("tap");
  *tap = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
  if (*tap < 0) return failed("/dev/net/tun");
  snprintf(request.ifr_name, sizeof request.ifr_name, "%s", options->tap);
  return ioctl(*tap, TUNSETIFF, &request) == 0 ? done : failed("tap");
}

/* Targets are relative to the working directory, which becomes the new root. */
static int show(const char *source, const char *target, unsigned long flags) {
  if (mount(source, target, NULL, MS_BIND, NULL) != 0) return -1;
  return mount(NULL, target, NULL, MS_BIND | MS_REMOUNT | MS_NOSUID | MS_NODEV | flags, NULL);
}

static int show_directory(const char *source, const char *target, unsigned long flags) {
  if (mkdir(target, 0755) != 0) return -1;
  return show(source, target, flags);
}

static int show_file(const char *source, const char *target, unsigned long flags) {
  int fd = open(target, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return -1;
  close(fd);
  return show(source, target, MS_RDONLY | flags);
}

/* The directories of libraries; on most systems they are links into /usr. */
static int show_libraries(const char *name) {
  char path[64], link[PATH_BYTES];
  struct stat status;
  snprintf(path, sizeof path, "/%s", name);
  if (lstat(path, &status) != 0) return errno == ENOENT ? 0 : -1;
  if (!S_ISLNK(status.st_mode)) return show_directory(path, name, MS_RDONLY);
  ssize_t length = readlink(path, link, sizeof link - 1);
  if (length < 0) return -1;
  link[length] = '\0';
  return symlink(link, name);
}

static int show_programs(void) {
  if (show_directory("/usr", "usr", MS_RDONLY) != 0) return -1;
  if (show_libraries("lib") != 0 || show_libraries("lib64") != 0) return -1;
  if (access("/etc/ld.so.cache", R_OK) != 0) return 0;
  if (mkdir("etc", 0755) != 0) return -1;
  return show_file("/etc/ld.so.cache", "etc/ld.so.cache", MS_NOEXEC);
}

static int make_device(const char *path, mode_t mode, dev_t number, uid_t owner) {
  if (mknod(path, S_IFCHR | mode, number) != 0) return -1;
  return chown(path, owner, owner);
}

static int make_devices(const struct options *options) {
  struct stat kvm;
  if (mkdir("dev", 0755) != 0) return -1;
  if (make_device("dev/null", 0666, makedev(1, 3), 0) != 0) return -1;
  if (make_device("dev/urandom", 0444, makedev(1, 9), 0) != 0) return -1;
  if (!options->with_kvm) return 0;
  if (stat("/dev/kvm", &kvm) != 0) return -1;
  return make_device("dev/kvm", 0600, kvm.st_rdev, (uid_t)options->uid);
}

static int show_machine(const struct options *options) {
  const unsigned long flags = MS_NOEXEC;
  if (show_directory(options->guest, "guest", flags | MS_RDONLY) != 0) return -1;
  if (options->preload != NULL && show_file(options->preload, "preload.so", 0) != 0) return -1;
  if (options->disks != NULL && show_directory(options->disks, "disks", flags) != 0) return -1;
  if (options->base == NULL) return 0;
  return mkdir("base", 0755) != 0 ? -1 : show_file(options->base, "base/root", MS_NOEXEC);
}

/* Shows only processes of the same user and namespace: QEMU itself. */
static int show_processes(void) {
  if (mkdir("proc", 0555) != 0) return -1;
  const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
  return mount("proc", "proc", "proc", flags, "hidepid=2,subset=pid");
}

static struct failure enter_root(const struct options *options) {
  if (unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP) != 0)
    return failed("namespaces");
  if (sethostname("machine", strlen("machine")) != 0) return failed("host name");
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return failed("private mounts");
  /* Mounted over the run directory, in this mount namespace only. */
  if (mount("tmpfs", options->run, "tmpfs", MS_NOSUID | MS_NOEXEC, "size=256k,mode=755") != 0)
    return failed("root");
  if (chdir(options->run) != 0) return failed("root");
  if (show_programs() != 0) return failed("programs");
  if (make_devices(options) != 0) return failed("devices");
  if (show_machine(options) != 0) return failed("disks");
  if (show_processes() != 0) return failed("proc");
  if (syscall(SYS_pivot_root, ".", ".") != 0) return failed("root");
  if (umount2(".", MNT_DETACH) != 0 || chdir("/") != 0) return failed("root");
  if (mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NOEXEC, NULL) != 0)
    return failed("root");
  return done;
}

static int limit(int resource, rlim_t value) {
  struct rlimit limit = {.rlim_cur = value, .rlim_max = value};
  return setrlimit(resource, &limit);
}

static struct failure drop_privileges(const struct options *options) {
  gid_t group = (gid_t)options->uid;
  uid_t user = (uid_t)options->uid;
  if (limit(RLIMIT_CORE, 0) != 0 || limit(RLIMIT_NOFILE, FILES_MAX) != 0) return failed("limits");
  if (limit(RLIMIT_FSIZE, (rlim_t)options->file_bytes_max) != 0) return failed("limits");
  for (int capability = 0; capability < CAPABILITIES_MAX; capability++)
    if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 && errno != EINVAL)
      return failed("capabilities");
  if (setgroups(0, NULL) != 0 || setresgid(group, group, group) != 0) return failed("group");
  if (setresuid(user, user, user) != 0) return failed("user");
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return failed("privileges");
  /*
   * Without its shim nobody would record the end, so the machine dies with it. Last, because a
   * change of user resets this; the wait for the go-ahead proves that the shim is still alive.
   */
  return prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0 ? done : failed("death signal");
}

/*
 * An emulator asks for huge pages for the code that it translates. A machine fills a small part of
 * them, and clearing the rest costs more than they save.
 */
static int refuse_huge_pages(void) { return prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); }

static void reset_signals(void) {
  sigset_t none;
  for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
}

static struct failure place_descriptors(const struct handles *handles, int tap) {
  int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0 || dup2(null, STDIN_FILENO) < 0) return failed("descriptors");
  if (dup2(handles->output, STDOUT_FILENO) < 0) return failed("descriptors");
  if (dup2(handles->output, STDERR_FILENO) < 0) return failed("descriptors");
  if (dup2(handles->monitor, FD_MONITOR) < 0) return failed("descriptors");
  if (dup2(handles->guest, FD_GUEST) < 0) return failed("descriptors");
  if (tap >= 0 && dup2(tap, FD_TAP) < 0) return failed("descriptors");
  /* QEMU ends after its shim, whose end must not let another machine begin. */
  if (dup2(handles->lock, FD_LOCK) < 0) return failed("descriptors");
  return done;
}

/* All but those just placed; our own lie above them and close on exec. */
static int close_others(const struct options *options, bool with_tap) {
  unsigned first = FD_PASSED + (unsigned)options->passed;
  if (!with_tap && close_range(FD_TAP, FD_TAP, 0) != 0) return -1;
  if (close_range(FD_LOCK + 1, FD_PASSED - 1, 0) != 0) return -1;
  return close_range(first, ~0U, CLOSE_RANGE_CLOEXEC);
}

struct failure become_machine(const struct options *options, const struct handles *handles) {
  char *const preload = options->preload == NULL ? NULL : "LD_PRELOAD=/preload.so";
  char *const environment[] = {"PATH=/usr/bin", "LC_ALL=C", preload, NULL};
  struct failure failure;
  char go;
  int tap;
  umask(0);
  prefer_as_victim();
  if (join_groups(options->machine_groups) != 0) return failed("control group");
  if ((failure = enter_network(options, &tap)).error != 0) return failure;
  if (tap >= 0 && (tap = fcntl(tap, F_DUPFD_CLOEXEC, FD_OWN_MIN)) < 0) return failed("tap");
  if ((failure = enter_root(options)).error != 0) return failure;
  if ((failure = drop_privileges(options)).error != 0) return failure;
  if (!options->with_kvm && refuse_huge_pages() != 0) return failed("huge pages");
  umask(077);
  reset_signals();
  if (read(handles->go, &go, 1) != 1) return failed("go-ahead");
  if ((failure = place_descriptors(handles, tap)).error != 0) return failure;
  if (close_others(options, tap >= 0) != 0) return failed("descriptors");
  execve(options->program[0], options->program, environment);
  return failed(options->program[0]);
}
