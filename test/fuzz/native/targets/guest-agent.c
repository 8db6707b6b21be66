/*
 * The whole guest agent, from its `main`, between a host that says anything, processes that do
 * anything, and a kernel whose calls may fail. What it sends must be frames, whatever happens.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <mntent.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <time.h>

#include "../../../../agent/guest/loop.h"
#include "../../../../agent/guest/wire.h"
#include "../frames.h"
#include "../fuzz.h"
#include "../kernel.h"
#include "../processes.h"

enum { KIND_CHANNEL = KIND_OWN, KIND_NAME, CHANNEL_FD = 3, WATCHES_MAX = 64, TURNS_MAX = 2000 };

/* Bytes that the host has sent and the guest not read. */
static uint8_t sent[4 * STUFFED_MAX];
static size_t sent_from, sent_to, piece_max;

/* Bytes that the guest is sending. */
static uint8_t received[2 * STUFFED_MAX];
static size_t received_length;
static bool is_welcomed, is_cut;

static struct {
  int fd;
  uint32_t events;
  struct watch *watch;
} watches[WATCHES_MAX];
static size_t watch_count;
static int turns;

/*
 * A frame that was half sent when a new host came is cut off by that host's welcome; nothing else
 * may be cut. The welcome itself is, when the next host says hello before it has left. A kind is
 * never zero, so it follows the length of the first run as it is.
 */
static void check_frame(void) {
  static uint8_t content[2 * STUFFED_MAX];
  size_t whole = reference_unstuff(received, received_length, content);
  bool is_frame = whole != SIZE_MAX && whole >= HEAD_BYTES + CHECKSUM_BYTES;
  uint32_t crc = is_frame ? reference_crc(content, whole - CHECKSUM_BYTES) : 0;
  is_frame = is_frame && memcmp(content + whole - CHECKSUM_BYTES, &crc, CHECKSUM_BYTES) == 0;
  if (!is_frame) {
    CHECK(!is_cut || received_length < 2 || received[1] == KIND_WELCOME);
    is_cut = true;
    return;
  }
  CHECK(whole <= LIMIT_FRAME_MAX && content[0] >= KIND_WELCOME);
  is_welcomed = is_welcomed || content[0] == KIND_WELCOME;
  CHECK(is_welcomed && (!is_cut || content[0] == KIND_WELCOME));
  is_cut = false;
}

ssize_t written_to_kind(int fd, int kind, const void *bytes, size_t length) {
  (void)fd;
  uint8_t answer = take_answer();
  if (answer >= 0x80 && kind != KIND_PLAIN) length = 1 + answer * length / 0x200;
  if (kind != KIND_CHANNEL) return (ssize_t)length;
  for (size_t index = 0; index < length; index++) {
    uint8_t byte = ((const uint8_t *)bytes)[index];
    if (byte == 0) check_frame();
    CHECK(received_length < sizeof received);
    received[received_length++] = byte;
    if (byte == 0) received_length = 0;
  }
  return (ssize_t)length;
}

static ssize_t read_channel(void *into, size_t length) {
  size_t left = sent_to - sent_from;
  if (left == 0) {
    errno = EAGAIN;
    return -1;
  }
  if (length > left) length = left;
  if (length > piece_max) length = piece_max;
  memcpy(into, sent + sent_from, length);
  sent_from += length;
  return (ssize_t)length;
}

/* The state of a pipe: nothing yet, its end, an error, or so many bytes. */
static ssize_t read_pipe(void *into, size_t length) {
  static const int errors[] = {EAGAIN, EINTR, EIO};
  uint8_t how = take_u8();
  if (how == 3) return 0;
  if (how < 3) {
    errno = errors[how];
    return -1;
  }
  size_t count = how < 128 ? how : take_u16();
  if (count > length) count = length;
  memset(into, how, count);
  return (ssize_t)count;
}

/* From the back, as other answers of the kernel: the host's bytes stay where they are. */
static ssize_t read_file(void *into, size_t length) {
  uint8_t *bytes = into;
  size_t count = take_answer();
  if (count > length) count = length;
  for (size_t index = 0; index < count; index++) bytes[index] = take_answer();
  return (ssize_t)count;
}

ssize_t read_kind(int fd, int kind, void *into, size_t length) {
  static const char name[] = "berth.guest.0\n";
  (void)fd;
  if (kind == KIND_CHANNEL) return read_channel(into, length);
  if (kind == KIND_PIPE) return read_pipe(into, length);
  if (kind == KIND_NAME) return memcpy(into, name, sizeof name - 1), sizeof name - 1;
  if (kind != KIND_SIGNALS) return read_file(into, length);
  struct signalfd_siginfo *info = into;
  memset(info, 0, sizeof *info);
  info->ssi_signo = take_u8() % 8 == 7 ? 15 : 17;
  return sizeof *info;
}

int kind_of_path(const char *path) {
  if (strcmp(path, "/modules") == 0) return take_u8() & 1 ? KIND_PLAIN : FD_NONE;
  if (strncmp(path, "/sys/class/virtio-ports", 23) == 0) return KIND_NAME;
  bool is_port = strncmp(path, "/dev/", 5) == 0 && strcmp(path, "/dev/null") != 0 &&
                 strcmp(path, "/dev/console") != 0;
  return is_port ? KIND_CHANNEL : KIND_PLAIN;
}

/* In a child: what the host asked for must be there; what it means is not the agent's business. */
FAKE _Noreturn void fake_run_file_operation(const uint8_t *operation, size_t length,
                                            const char *default_user) {
  static uint8_t seen[LIMIT_FRAME_MAX];
  CHECK(length > 0 && length <= sizeof seen && strlen(default_user) <= LIMIT_USER_MAX);
  memcpy(seen, operation, length);
  stop_subject(0);
}

static void send_bytes(const uint8_t *bytes, size_t length) {
  if (sent_from == sent_to) sent_from = sent_to = 0;
  if (length > sizeof sent - sent_to) return;
  memcpy(sent + sent_to, bytes, length);
  sent_to += length;
}

static uint8_t content[LIMIT_FRAME_MAX];
static size_t content_length;

static void put(const void *bytes, size_t length) {
  if (length > sizeof content - content_length - CHECKSUM_BYTES) return;
  memcpy(content + content_length, bytes, length);
  content_length += length;
}

static void put_value(uint64_t value, size_t bytes) { put(&value, bytes); }

/* Bytes of the input, or so many of one kind: large texts cost an input little. */
static void put_some(size_t max) {
  static uint8_t some[LIMIT_FRAME_MAX];
  uint8_t how = take_u8();
  size_t length = how < 0xc0 ? how : (size_t)take_u16();
  if (length > max) length = max;
  if (how < 0xc0)
    take_into(some, length);
  else
    memset(some, how, length);
  put(some, length);
}

/* Few processes, so that they are met again. */
static void put_id(void) {
  uint8_t id[ID_BYTES];
  memset(id, take_u8() % 4, sizeof id);
  put(id, sizeof id);
}

static void begin(uint8_t kind) {
  content_length = 0;
  put_value(kind, 1);
  put_value(take_u8(), 4);
}

static void send_content(void) {
  static uint8_t stuffed[STUFFED_MAX + 1];
  send_bytes(stuffed, reference_frame(content, content_length, stuffed));
}

static void send_hello(void) {
  static const uint8_t zero;
  uint8_t number = take_u8();
  send_bytes(&zero, number & 1);
  begin(KIND_HELLO);
  put_value(PROTOCOL_VERSION, 2);
  content[content_length] = number;
  put(content + content_length, ID_BYTES);
  send_content();
}

static void send_any(void) {
  uint8_t kind = take_u8();
  begin(kind % 24);
  if (kind & 0x80) put_id();
  put_some(LIMIT_FRAME_MAX);
  send_content();
}

static size_t stage(bool has_end, size_t max) {
  begin(KIND_STAGE);
  put_some(max);
  if (has_end) put_value(0, 1);
  send_content();
  return content_length - HEAD_BYTES;
}

/* A start whose lengths are right, but for one that the input may change. */
static void send_start(void) {
  uint8_t how = take_u8();
  size_t command = stage(true, 65000), environment = stage((how & 1) != 0, 2000);
  size_t directory = stage(true, 4096);
  begin(KIND_START);
  put_id();
  put_value(how >> 1, 1);
  put_value(take_u16(), 2);
  put_value(take_u16(), 2);
  put_value(command + (how == 0xff), 4);
  put_value(environment - (how == 0xfe), 4);
  put_value(directory, 4);
  send_content();
}

static void put_text(size_t length_bytes, size_t max) {
  size_t length = take_up_to((uint32_t)max);
  put_value(length, length_bytes);
  for (size_t index = 0; index < length; index++) put_value(index < 8 ? take_u8() | 1u : 'x', 1);
}

static void send_configure(void) {
  size_t environment = stage(true, 2000), entropy = 32 + take_up_to(480);
  begin(KIND_CONFIGURE);
  put_value(take_u64(), 8);
  put_value(entropy, 2);
  for (; entropy > 0; entropy--) put_value(entropy, 1);
  put_text(1, 64);
  put_id();
  put_id();
  put_text(1, 16);
  put_value(take_u32(), 4);
  put_value(take_u8() % 40, 1);
  put_value(take_u32(), 4);
  put_value(take_u32(), 4);
  put_value(take_u16(), 2);
  put_text(1, 64);
  put_text(1, 16);
  put_text(2, 4096);
  put_value(environment, 4);
  send_content();
}

static void send_raw(void) {
  uint8_t raw[256];
  size_t length = take_u8();
  send_bytes(raw, take_into(raw, length));
}

static void (*const host[])(void) = {send_hello, send_any,   send_start, send_configure,
                                     send_raw,   send_hello, send_any,   send_start};

static int report_watch(size_t index, struct epoll_event *event) {
  if (watch_count == 0 || watches[index % watch_count].events == 0) return 0;
  kind_of(watches[index % watch_count].fd);
  *event = (struct epoll_event){.events = EPOLLIN, .data.ptr = watches[index % watch_count].watch};
  return 1;
}

/* Each turn of the agent's loop: the host sends, something is ready, or time passes. */
int fake_epoll_wait(int fd, struct epoll_event *events, int max, int timeout_ms) {
  kind_of(fd);
  CHECK(max == 1);
  if (input_is_empty() || ++turns == TURNS_MAX) stop_subject(0);
  uint8_t what = take_u8();
  if (what >= 0xc0) {
    clock_us += 1000 * (uint64_t)(timeout_ms > 0 ? timeout_ms : take_u8());
    return 0;
  }
  if (what >= 0x60) return report_watch(what, events);
  piece_max = what & 8 ? 1u + take_u8() : SIZE_MAX;
  host[what % 8]();
  for (size_t index = 0; index < watch_count; index++)
    if (kind_of(watches[index].fd) == KIND_CHANNEL) return report_watch(index, events);
  return 0;
}

int fake_epoll_create1(int flags) { return (void)flags, new_fd(KIND_PLAIN, 0); }

int fake_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event) {
  size_t index = 0;
  kind_of(epoll);
  kind_of(fd);
  while (index < watch_count && watches[index].fd != fd) index++;
  CHECK((operation == EPOLL_CTL_ADD) == (index == watch_count));
  if (operation == EPOLL_CTL_DEL) {
    watches[index] = watches[--watch_count];
    return 0;
  }
  if (call_fails() || index == WATCHES_MAX) return -1;
  watches[index].fd = fd;
  watches[index].events = event->events;
  watches[index].watch = event->data.ptr;
  watch_count += operation == EPOLL_CTL_ADD;
  return 0;
}

int fake_close(int fd) {
  for (size_t index = 0; index < watch_count; index++) CHECK(watches[index].fd != fd);
  if (is_refused(kind_of(fd)) && fd == -1) return -1;
  set_kind(fd, KIND_CLOSED);
  return 0;
}

int fake_ioctl(int fd, unsigned long request, ...) {
  kind_of(fd);
  if (call_fails()) return -1;
  return request == TIOCGPTPEER ? new_fd(KIND_PIPE, 0) : 0;
}

/* The memory of rings, of the allocator: so that the sanitizer knows its ends. */
void *fake_malloc(size_t size);
void fake_free(void *block);
void *fake_mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
  (void)at, (void)protection, (void)flags, (void)fd, (void)offset;
  void *block = fake_malloc(length);
  return block == NULL ? MAP_FAILED : block;
}
int fake_munmap(void *at, size_t length) { return (void)length, fake_free(at), 0; }
int fake_madvise(void *at, size_t length, int advice) {
  return (void)at, (void)length, (void)advice, 0;
}

int fake_posix_openpt(int flags) { return (void)flags, call_fails() ? -1 : new_fd(KIND_PIPE, 0); }
int fake_unlockpt(int fd) { return kind_of(fd), call_fails() ? -1 : 0; }
/* The host of this target comes over a port, which is never listened on. */
int fake_accept4(int fd, struct sockaddr *peer, socklen_t *length, int flags) {
  return (void)fd, (void)peer, (void)length, (void)flags, errno = EAGAIN, -1;
}
int fake_gethostname(char *name, size_t size) {
  CHECK(size > 1);
  snprintf(name, size, "%c", 'a' + take_answer() % 4);
  return call_fails() ? -1 : 0;
}
int fake_sethostname(const char *name, size_t length) {
  CHECK(strlen(name) == length && length <= LIMIT_HOSTNAME_MAX);
  return call_fails() ? -1 : 0;
}
int fake_clock_settime(clockid_t clock, const struct timespec *now) {
  return (void)clock, (void)*now, call_fails() ? -1 : 0;
}
ssize_t fake_getrandom(void *into, size_t length, unsigned flags) {
  return (void)flags, memset(into, 1, length), (ssize_t)length;
}
int fake_sysinfo(struct sysinfo *info) {
  memset(info, 0, sizeof *info);
  info->totalram = take_answer() * (unsigned long)MIB;
  info->mem_unit = 1;
  return 0;
}
static struct if_nameindex interfaces[] = {{1, (char *)"lo"}, {2, (char *)"eth0"}, {0, NULL}};
struct if_nameindex *fake_if_nameindex(void) {
  return call_fails() ? NULL : interfaces;
}
void fake_if_freenameindex(struct if_nameindex *all) { CHECK(all == interfaces); }
void fake_sync(void) {}
int fake_reboot(int how) { stop_subject(how); }
int fake_pause(void) { stop_subject(0); }
/* A module is loaded, or the guest agent looks whether a path can be opened. */
long fake_syscall(long number, ...) {
  if (call_fails()) return -1;
  return number == SYS_openat2 ? new_fd(KIND_PLAIN, 0) : 0;
}

ssize_t fake_read(int fd, void *into, size_t length);
ssize_t fake_write(int fd, const void *bytes, size_t length);
ssize_t fake_pread(int fd, void *into, size_t length, off_t at) {
  CHECK(at >= 0);
  return fake_read(fd, into, length);
}
ssize_t fake_recv(int fd, void *into, size_t length, int flags) {
  return (void)flags, fake_read(fd, into, length);
}
ssize_t fake_send(int fd, const void *bytes, size_t length, int flags) {
  return (void)flags, fake_write(fd, bytes, length);
}
int fake_setns(int fd, int kind) { return kind_of(fd), (void)kind, call_fails() ? -1 : 0; }

/* A table of mounts with as many lines as the input says. */
FILE *fake_setmntent(const char *path, const char *mode) {
  CHECK(strlen(path) > 0 && strlen(mode) > 0);
  return call_fails() ? NULL : stderr;
}
struct mntent *fake_getmntent_r(FILE *table, struct mntent *entry, char *line, int room) {
  CHECK(table == stderr && room > 0);
  if (take_answer() % 4 == 0) return NULL;
  snprintf(line, (size_t)room, "/d");
  *entry = (struct mntent){.mnt_dir = line, .mnt_type = (char *)(call_fails() ? "ext4" : "nfs4")};
  return entry;
}
int fake_statx(int directory, const char *path, int flags, unsigned mask, struct statx *status) {
  (void)directory, (void)flags, (void)mask, (void)*status;
  return (void)strlen(path), call_fails() ? -1 : 0;
}

void fake_perror(const char *text) { (void)strlen(text); }

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  static char name[] = "guest", socket[] = "--socket", number[] = "3", group[] = "--group",
              directory[] = "/group", rings[] = "--rings", few[] = "300000";
  char *in_test[] = {name, socket, number, group, directory, rings, few, NULL};
  begin_input(bytes, length);
  begin_kernel(3);
  begin_processes();
  sent_from = sent_to = received_length = watch_count = 0;
  is_welcomed = is_cut = false;
  turns = 0;
  uint8_t mode = take_u8();
  allow_failures(mode & 1);
  if (mode & 2) set_kind(CHANNEL_FD, KIND_CHANNEL);
  run_subject(mode & 2 ? (mode & 4 ? 5 : 7) - 2 * ((mode & 8) != 0) : 1, in_test);
  end_input();
  return 0;
}
