/*
 * The guest agent: PID 1 of a sandbox's virtual machine, started by the kernel from its initramfs.
 * It owns the processes, their terminals and their output; the host talks to it over one port.
 *
 * Usage: init                                            in a virtual machine
 *        modprobe [-OPTION]… MODULE                       there, started by the kernel: modules.c
 *        guest --listen FD [--rings BYTES]                in a container: the host connects to the
 *              socket FD; clock, random numbers, name and mounts are not the guest agent's there
 *        guest --socket FD [--group DIR] [--rings BYTES] [--retain MS] [--silence MS]
 *              in tests, as PID 1 of a PID namespace: does not touch the clock, the random numbers,
 *              the power or the first mounts
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel.h"
#include "commands.h"
#include "freeze.h"
#include "hook.h"
#include "loop.h"
#include "modules.h"
#include "mounts.h"
#include "network.h"
#include "power.h"
#include "process.h"
#include "root.h"
#include "settings.h"
#include "spawn.h"
#include "trim.h"

#define PORT_NAME "berth.guest.0"
#define PORTS "/sys/class/virtio-ports"

enum {
  FILES_MAX = 16384,
  INSIDE_GRACE_MS = 10000,
  REAPED_PER_TURN = 64,
  HIGHEST_PRIORITY = -20,
};

static bool more_to_reap;

struct options {
  int socket, listener; /* Both -1 in a virtual machine. */
  const char *group;
  uint64_t rings_bytes;
  uint64_t retain_ms;
  uint64_t silence_ms;
};

static _Noreturn void die(const char *what, int error) {
  fprintf(stderr, "berth guest: %s: %s\n", what, strerror(error));
  if (getpid() == 1) sync();
  exit(1); /* In a virtual machine the kernel panics when its init ends. */
}

/* In a storm of forks there are new ones as fast as they are reaped, and everything else waits. */
static void reap_some(void) {
  int status;
  pid_t pid = 1;
  for (int count = 0; count < REAPED_PER_TURN && pid > 0; count++) {
    pid = waitpid(-1, &status, WNOHANG);
    if (pid > 0 && !freeze_reaped(pid, status) && !mount_reaped(pid, status) &&
        !hook_reaped(pid, status) && !trim_reaped(pid, status))
      process_reaped(pid, status);
  }
  more_to_reap = pid > 0;
  if (pid < 0 && errno == ECHILD) shutdown_noticed_empty();
}

static void signals_ready(struct watch *watch) {
  struct signalfd_siginfo info;
  if (read(watch->fd, &info, sizeof info) != sizeof info) return;
  if (info.ssi_signo == SIGCHLD)
    more_to_reap = true;
  else
    begin_shutdown(INSIDE_GRACE_MS, false);
}

/* The signals by which the usual `halt`, `poweroff` and `reboot` ask their init. */
static void watch_signals(void) {
  static struct watch signals = {.ready = signals_ready};
  const int asked[] = {SIGCHLD, SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGPWR};
  sigset_t set;
  sigemptyset(&set);
  for (size_t index = 0; index < sizeof asked / sizeof *asked; index++)
    sigaddset(&set, asked[index]);
  for (int number = SIGRTMIN + 3; number <= SIGRTMIN + 6; number++) sigaddset(&set, number);
  sigprocmask(SIG_BLOCK, &set, NULL);
  signal(SIGPIPE, SIG_IGN);
  signals.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals.fd < 0 || watch_for(&signals, EPOLLIN) != 0) die("signals", errno);
}

static bool has_name(const char *port) {
  char path[sizeof PORTS + 300], name[sizeof PORT_NAME + 1] = {0};
  snprintf(path, sizeof path, PORTS "/%s/name", port);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t got = read(fd, name, sizeof name - 1);
  close(fd);
  return got > 0 && strcspn(name, "\n") == strlen(PORT_NAME) &&
         strncmp(name, PORT_NAME, strlen(PORT_NAME)) == 0;
}

/* Finds the port by its own name: device names depend on the order of discovery. */
static int open_port(void) {
  char path[300];
  int fd = -1;
  DIR *ports = opendir(PORTS);
  if (ports == NULL) return -1;
  for (struct dirent *entry; fd < 0 && (entry = readdir(ports)) != NULL;) {
    if (entry->d_name[0] == '.' || !has_name(entry->d_name)) continue;
    snprintf(path, sizeof path, "/dev/%s", entry->d_name);
    fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
  }
  closedir(ports);
  return fd;
}

static int wait_for_port(void) {
  for (int look = 0; look < 1000; look++) {
    int fd = open_port();
    if (fd >= 0) return fd;
    usleep(10 * 1000); /* The driver may not have found it yet. */
  }
  die("no port " PORT_NAME, ENODEV);
}

static struct options read_options(int argc, char **argv) {
  struct options options = {.socket = -1, .listener = -1};
  for (int index = 1; index + 1 < argc; index += 2) {
    const char *name = argv[index], *value = argv[index + 1];
    if (strcmp(name, "--socket") == 0) options.socket = atoi(value);
    if (strcmp(name, "--listen") == 0) options.listener = atoi(value);
    if (strcmp(name, "--group") == 0) options.group = value;
    if (strcmp(name, "--rings") == 0) options.rings_bytes = strtoull(value, NULL, 10);
    if (strcmp(name, "--retain") == 0) options.retain_ms = strtoull(value, NULL, 10);
    if (strcmp(name, "--silence") == 0) options.silence_ms = strtoull(value, NULL, 10);
  }
  return options;
}

static void raise_limits(void) {
  struct rlimit files = {.rlim_cur = FILES_MAX, .rlim_max = FILES_MAX};
  remember_limits();
  setrlimit(RLIMIT_NOFILE, &files);
}

static void bound_rings(uint64_t bytes) {
  struct sysinfo info;
  if (bytes == 0 && sysinfo(&info) == 0) bytes = (uint64_t)info.totalram * info.mem_unit / 4;
  set_ring_budget(bytes, evict_process);
}

/*
 * Without a console in the initramfs, the first files opened would become stdin, stdout and stderr.
 */
static void open_console(void) {
  int fd = open("/dev/console", O_RDWR | O_NOCTTY);
  if (fd < 0) fd = open("/dev/null", O_RDWR);
  for (int stream = 0; stream < 3; stream++)
    if (fd != stream) dup2(fd, stream);
  if (fd > 2) close(fd);
}

static void set_up(const struct options *options) {
  if (options->listener >= 0) {
    keep_kernel();
    keep_power();
    expose_processes();
    return;
  }
  if (options->socket >= 0) {
    keep_kernel();
    keep_power();
    if (options->group != NULL && use_group(options->group) != 0) die("control group", errno);
    return;
  }
  setpriority(PRIO_PROCESS, 0, HIGHEST_PRIORITY);
  int error = mount_initial();
  open_console();
  if (error != 0) die("mounting", error);
  error = load_modules();
  if (error == 0) error = offer_modules();
  if (error != 0) die("modules", error);
  raise_interfaces();
  use_group("/sys/fs/cgroup/processes");
}

static void forget_host(void) {
  commands_forget_host();
  processes_forget_host();
}

static void release_from_host(void) {
  forget_host();
  processes_release();
}

static const struct channel_handlers handlers = {
    .host_changed = forget_host,
    .host_left = release_from_host,
    .frame_received = handle_command,
    .compose = processes_compose,
};

static int open_channel(const struct options *options) {
  if (options->listener >= 0) return channel_listen(options->listener, &handlers);
  if (options->socket >= 0) return channel_open(options->socket, false, &handlers);
  return channel_open(wait_for_port(), true, &handlers);
}

int main(int argc, char **argv) {
  int exit_code;
  if (asked_for_module(argc, argv, &exit_code)) return exit_code;
  struct options options = read_options(argc, argv);
  if (getpid() != 1) die("not PID 1", EPERM); /* The agent may stop every process it sees. */
  /* Inherited descriptors must not reach the processes started here. */
  close_range(3, UINT_MAX, CLOSE_RANGE_CLOEXEC);
  set_up(&options);
  raise_limits();
  bound_rings(options.rings_bytes);
  if (options.retain_ms != 0) set_retention(options.retain_ms);
  if (options.silence_ms != 0) set_host_silence(options.silence_ms);
  if (loop_open() != 0) die("epoll", errno);
  watch_signals();
  if (open_channel(&options) != 0) die("channel", errno);
  for (;;) {
    /* First the requests of the host, because they change what is due and when. */
    uint64_t next = channel_run() ? 0 : UINT64_MAX;
    if (channel_has_ended()) break;
    if (more_to_reap) reap_some();
    if (more_to_reap) next = 0;
    next = earlier(next, processes_tick());
    next = earlier(next, freeze_tick());
    next = earlier(next, mounts_tick());
    next = earlier(next, trim_tick());
    next = earlier(next, hook_tick());
    next = earlier(next, shutdown_tick());
    loop_turn(earlier(next, channel_tick()));
  }
  kill(-1, SIGKILL);
  return 0;
}
