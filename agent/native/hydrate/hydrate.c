/*
 * Makes every open of a placeholder wait until the agent has filled the file. A placeholder is a
 * file with the attribute `trusted.berth.placeholder`; other files of the file system are opened at
 * once. Works in every mount namespace, so for containers as well (fanotify(7)).
 *
 * Usage: hydrate DIRECTORY SOCKET GROUP [FD]
 *   Watches the file system mounted at DIRECTORY, listens on SOCKET, and joins the control group
 *   whose cgroup.procs is GROUP. Prints `ready` once every open is watched. Ends when the file
 *   system is unmounted everywhere. FD is the fanotify group of a former helper of this mount,
 *   which the agent has kept: opens wait in it. Those that the former helper had begun to deal with
 *   fail with EIO. Fails when nothing is mounted at DIRECTORY.
 *
 * The kernel lets every open go on when the last descriptor of the group closes, and a placeholder
 * would then be read as zeros. So three processes have the same table of descriptors (CLONE_FILES),
 * and the agent has a copy of the group; it takes the death of all of them to close it. One of the
 * processes works: it alone reads events, answers them, and opens and closes descriptors of the
 * table. The kernel knows an open by the number of its descriptor, so a second one that closes or
 * answers would let the wrong open go on. The others wait for its end; then one of them takes over,
 * and starts those that are missing. The descriptors of opens that wait stay in the table.
 *
 * Lines to the agent, numbers in decimal:
 *   hello PID DEVICE FD   first: the process that has the descriptors, the number of the file
 *                         system, and the fanotify group
 *   open SERIAL FD        an open of a placeholder waits; perhaps told more than once
 *   write SERIAL COPY     the answer to `write`; COPY is -1 when it failed
 * Lines from the agent:
 *   write SERIAL FD    opens the file once more, for writing, which makes no open wait; that copy
 *                      is closed before the open goes on
 *   allow SERIAL FD    lets the open go on; one of a file that is still a placeholder is told again
 *   deny SERIAL FD     has the open fail
 * The number of a descriptor is soon that of another open, so the agent's words count only for the
 * open that has this serial.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include "../common/disk-failure.h"
#include "hydrate-opens.h"
#include "hydrate-processes.h"
#include "hydrate-state.h"
#include "hydrate-work.h"

#ifndef FAN_CLASS_PRE_CONTENT
#define FAN_CLASS_PRE_CONTENT 0x00000008
#endif

struct state *state;

static void listen_on(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) fail(FAILED, path, ENAMETOOLONG);
  snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  state->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  unlink(path);
  if (state->listener < 0 || bind(state->listener, (void *)&address, sizeof address) != 0 ||
      chmod(path, 0600) != 0 || listen(state->listener, 4) != 0)
    fail(FAILED, path, errno);
}

static bool write_text(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  bool is_written = fd >= 0 && write(fd, text, strlen(text)) > 0;
  if (fd >= 0) close(fd);
  return is_written;
}

/*
 * Opens the root of the mounted file system. The disk may have been unmounted since the agent
 * started this program, for example because the agent was killed: then DIRECTORY is one of the
 * host's own file system, which must not be watched. The descriptor keeps it mounted until it is
 * closed.
 */
static int open_mount(const char *directory) {
  struct statx status;
  int root = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root < 0 || statx(root, "", AT_EMPTY_PATH, STATX_TYPE, &status) != 0)
    fail(FAILED, directory, errno);
  /* The error is that of umount(2) for what is not a mount point. */
  if (!(status.stx_attributes & STATX_ATTR_MOUNT_ROOT)) fail(FAILED, directory, EINVAL);
  state->device = makedev(status.stx_dev_major, status.stx_dev_minor);
  return root;
}

static void watch_opens(int root, const char *former_group) {
  unsigned flags = FAN_CLASS_PRE_CONTENT | FAN_CLOEXEC | FAN_UNLIMITED_QUEUE | FAN_NONBLOCK;
  state->group = former_group == NULL
                     ? fanotify_init(flags, O_RDONLY | O_LARGEFILE | O_CLOEXEC | O_NOATIME)
                     : (int)strtol(former_group, NULL, 10);
  if (state->group < 0) fail(FAILED, "fanotify_init", errno);
  if (former_group != NULL) deny_former_opens();
  unsigned mark = FAN_MARK_ADD | FAN_MARK_FILESYSTEM;
  if (fanotify_mark(state->group, mark, FAN_OPEN_PERM, root, ".") != 0)
    fail(FAILED, "fanotify_mark", errno);
}

/* ext4 has figures of each mounted file system in sysfs. */
static void watch_mount(void) {
  char link[64], path[PATH_MAX + 64], device[PATH_MAX];
  snprintf(link, sizeof link, "/sys/dev/block/%u:%u", major(state->device), minor(state->device));
  if (realpath(link, device) == NULL) fail(FAILED, link, errno);
  snprintf(path, sizeof path, "/sys/fs/ext4/%s/session_write_kbytes", strrchr(device, '/') + 1);
  state->mounted = open(path, O_RDONLY | O_CLOEXEC);
  if (state->mounted < 0) fail(FAILED, path, errno);
}

static void raise_descriptor_limit(void) {
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max < DESCRIPTORS_MAX ? files.rlim_max : DESCRIPTORS_MAX;
  setrlimit(RLIMIT_NOFILE, &files);
}

static void share_state(const char *directory) {
  state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (state == MAP_FAILED) fail(FAILED, "mmap", errno);
  if (strlen(directory) >= sizeof state->root) fail(FAILED, directory, ENAMETOOLONG);
  snprintf(state->root, sizeof state->root, "%s", directory);
  state->work = work;
}

int main(int argc, char **argv) {
  if (argc != 4 && argc != 5) fail(FAILED, "hydrate", EINVAL);
  if (!write_text(argv[3], "0")) fail(FAILED, argv[3], errno);
  /* Others of the host can be missed sooner; not every container allows this. */
  write_text("/proc/self/oom_score_adj", "-1000");
  signal(SIGPIPE, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  signal(SIGINT, SIG_IGN);
  raise_descriptor_limit();
  share_state(argv[1]);
  int root = open_mount(argv[1]);
  watch_mount();
  listen_on(argv[2]);
  watch_opens(root, argc == 5 ? argv[4] : NULL);
  close(root);
  /* Nobody answers until it works, but nobody else uses the file system yet. */
  printf("ready\n");
  fflush(stdout);
  freopen("/dev/null", "r+", stdout);
  begin_work();
  return 0;
}
