/*
 * The search program with a tree of any names, files that have any bytes, and processes that print
 * anything: what it writes are frames, no more matches than wanted, each of a file that it was to
 * search, and one end. Its threads take turns: one runs from the post that it waits for to its next
 * wait.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <spawn.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../../agent/native/search/search-frames.h"
#include "../../../../agent/native/search/search-sift.h"
#include "../../../../agent/native/search/search-worker.h"
#include "../fuzz.h"
#include "../kernel.h"
#include "../processes.h"

enum {
  KIND_RG = KIND_OWN,
  KIND_COMPLAINTS,
  STAGED_MAX = 400 * 1024,
  ENTRIES_MAX = 400,
  THREADS_MAX = 8
};

/* The output of each rg: by the descriptor that it is read from. */
static struct rg {
  char **paths;
  size_t count, next, from, to;
  char *text;
} printers[FDS_MAX];
static int reader_of[FDS_MAX], spawned_output;
/* By the descriptor that it is read from: a thread has written a byte. */
static bool has_byte[FDS_MAX];

/* The threads of the sifters, and the one that has its turn. */
static struct thread {
  void *(*run)(void *);
  struct sifter *sifter;
  jmp_buf end_of_turn;
} threads[THREADS_MAX], *turn;
static size_t thread_count;

static uint8_t frame[5 + 8 + 4 + 1 + PATH_BYTES_MAX + TEXT_BYTES_MAX];
static size_t frame_length, matches, matches_max, entries;
static bool has_ended;

static void check_frame(uint32_t payload) {
  uint32_t path;
  memcpy(&path, frame + 13, sizeof path);
  CHECK(!has_ended);
  if (frame[0] == MATCH) {
    CHECK(payload >= 13 && path > 0 && path < PATH_BYTES_MAX && path <= payload - 13);
    CHECK(payload - 13 - path <= TEXT_BYTES_MAX && frame[17] <= 1 && ++matches <= matches_max);
  } else if (frame[0] == STATISTICS) {
    CHECK(payload == 32);
  } else if (frame[0] == PROBLEM) {
    CHECK(payload <= PROBLEM_BYTES_MAX);
  } else {
    CHECK(frame[0] == END && payload == 1 && frame[5] <= REFUSED);
    has_ended = true;
  }
}

ssize_t written_to_kind(int fd, int kind, const void *bytes, size_t length) {
  uint32_t payload = 0;
  if (kind == KIND_PIPE) {
    CHECK(turn != NULL && length == 1);
    has_byte[reader_of[fd]] = true;
    return 1;
  }
  CHECK(fd == STDOUT_FILENO && kind == KIND_PLAIN);
  for (size_t index = 0; index < length; index++) {
    frame[frame_length++] = ((const uint8_t *)bytes)[index];
    if (frame_length < 5) continue;
    memcpy(&payload, frame + 1, sizeof payload);
    CHECK(payload <= sizeof frame - 5);
    if (frame_length < 5 + payload) continue;
    check_frame(payload);
    frame_length = 0;
  }
  return (ssize_t)length;
}

static void put(struct rg *rg, const char *bytes, size_t length) {
  if (length > STAGED_MAX - rg->to) length = STAGED_MAX - rg->to;
  memcpy(rg->text + rg->to, bytes, length);
  rg->to += length;
}

static void put_line(struct rg *rg, uint8_t how) {
  static char filler[TEXT_BYTES_MAX * 2];
  char number[32];
  size_t length = how & 2 ? take_up_to(TEXT_BYTES_MAX * 2) : take_u8();
  put(rg, number,
      (size_t)sprintf(number, "%llu", (unsigned long long)take_u32()) * ((how & 4) == 0));
  put(rg, ":", 1);
  memset(filler, how & 8 ? 0xa4 : 'x', sizeof filler);
  take_into(filler, length < 16 ? length : 16);
  for (size_t index = 0; index < 16; index++)
    if (filler[index] == '\n') filler[index] = 0;
  put(rg, filler, length);
  put(rg, "\n", (how & 16) == 0);
}

/*
 * A match, a note that a file is binary, or anything at all; of the next files, or of a former one.
 */
static void print(struct rg *rg) {
  char raw[256];
  uint8_t how = take_u8();
  if (rg->from == rg->to) rg->from = rg->to = 0;
  if (how >= 0xe0) return put(rg, raw, take_into(raw, take_u8()));
  if (how & 1 && rg->next + 1 < rg->count) rg->next++;
  const char *path = rg->paths[how == 0xdf ? 0 : rg->next];
  put(rg, path, strlen(path));
  if (how >= 0xb0) {
    static const char binary[] = ": binary file matches (found \"\\0\" byte around offset 5)\n";
    return put(rg, binary, sizeof binary - 1 - (how & 2 ? 30 : 0));
  }
  put(rg, "", 1);
  put_line(rg, how);
}

static ssize_t read_printer(struct rg *rg, void *into, size_t length) {
  if (rg->text == NULL) rg->text = malloc(STAGED_MAX);
  if (rg->from == rg->to && !input_is_empty())
    for (int lines = take_u8() % 8; lines > 0; lines--) print(rg);
  size_t left = rg->to - rg->from;
  if (length > left) length = left;
  if (take_answer() & 1 && length > 1) length = 1 + take_answer() * length / 256;
  memcpy(into, rg->text + rg->from, length);
  rg->from += length;
  return (ssize_t)length;
}

ssize_t read_kind(int fd, int kind, void *into, size_t length) {
  CHECK(length > 0);
  if (has_byte[fd]) return has_byte[fd] = false, memset(into, 0, 1), 1;
  if (kind == KIND_RG) return read_printer(&printers[fd], into, length);
  CHECK(kind == KIND_COMPLAINTS || kind == KIND_PLAIN);
  return (ssize_t)take_into(into, take_u8() % 64);
}

int fake_pipe2(int ends[2], int flags) {
  bool is_first = (flags & O_NONBLOCK) != 0;
  if (!is_first && call_fails()) return -1;
  ends[0] = new_fd(is_first ? KIND_COMPLAINTS : KIND_RG, 0);
  ends[1] = new_fd(KIND_PIPE, 0);
  return reader_of[ends[1]] = ends[0], 0;
}

int fake_posix_spawn_file_actions_init(posix_spawn_file_actions_t *actions) { return 0; }
int fake_posix_spawn_file_actions_destroy(posix_spawn_file_actions_t *actions) { return 0; }
int fake_posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *actions, int fd, int to) {
  kind_of(fd);
  if (to == STDOUT_FILENO) spawned_output = reader_of[fd];
  return 0;
}

int fake_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                     const posix_spawnattr_t *attributes, char *const arguments[],
                     char *const environment[]) {
  struct rg *rg = &printers[spawned_output];
  CHECK(strcmp(path, arguments[0]) == 0 && environment[2] == NULL);
  while (strcmp(*arguments++, "--") != 0) continue;
  rg->paths = (char **)(uintptr_t)arguments;
  rg->count = rg->next = rg->from = rg->to = 0;
  for (; arguments[rg->count] != NULL; rg->count++)
    CHECK(strlen(arguments[rg->count]) < PATH_BYTES_MAX);
  CHECK(rg->count > 0);
  *pid = new_child();
  if (*pid < 0) return ENOMEM;
  /* The list is freed, its texts live as long as the worker. */
  static char *kept[FDS_MAX][ENTRIES_MAX + 2];
  memcpy(kept[spawned_output], rg->paths, rg->count * sizeof *rg->paths);
  rg->paths = kept[spawned_output];
  return 0;
}

int fake_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                        void *given) {
  if (call_fails()) return EAGAIN;
  CHECK(thread_count < THREADS_MAX);
  *thread = thread_count;
  threads[thread_count++] = (struct thread){.run = run, .sifter = given};
  return 0;
}

/* A semaphore is its count. */
int fake_sem_init(sem_t *semaphore, int is_shared, unsigned value) {
  *(unsigned *)semaphore = value;
  return 0;
}

static void give_turn(struct thread *thread) {
  turn = thread;
  if (setjmp(thread->end_of_turn) == 0) thread->run(thread->sifter);
  turn = NULL;
}

int fake_sem_post(sem_t *semaphore) {
  ++*(unsigned *)semaphore;
  for (size_t index = 0; turn == NULL && index < thread_count; index++)
    if (&threads[index].sifter->begun == semaphore) give_turn(&threads[index]);
  return 0;
}

int fake_sem_wait(sem_t *semaphore) {
  if (*(unsigned *)semaphore == 0) {
    CHECK(turn != NULL); /* Nobody would wake the program. */
    longjmp(turn->end_of_turn, 1);
  }
  --*(unsigned *)semaphore;
  return 0;
}

int fake_poll(struct pollfd *events, nfds_t count, int timeout_ms) {
  bool all = input_is_empty();
  clock_us += timeout_ms > 0 ? take_u8() * 1000u : 0;
  if (call_fails()) return -1;
  for (nfds_t index = 0; index < count; index++)
    events[index].revents = kind_of(events[index].fd) != 0 && (all || take_u8() & 1) ? POLLIN : 0;
  return 1;
}

ssize_t fake_getdents64(int fd, void *into, size_t length) {
  size_t at = 0;
  kind_of(fd);
  if (call_fails()) return -1;
  for (int count = take_u8() % 16; count > 0 && entries < ENTRIES_MAX; count--, entries++) {
    struct dirent64 *entry = (struct dirent64 *)((uint8_t *)into + at);
    uint8_t name = take_u8();
    size_t taken = take_into(entry->d_name, name == 0xff ? 255 : name % 8);
    for (size_t index = 0; index < taken; index++)
      if (entry->d_name[index] == '/' || entry->d_name[index] == '\0') entry->d_name[index] = 'a';
    if (taken == 0) entry->d_name[taken++] = 'b';
    entry->d_name[taken] = '\0';
    entry->d_type = name & 0x80 ? DT_DIR : name & 0x40 ? DT_UNKNOWN : DT_REG;
    entry->d_reclen = (unsigned short)((offsetof(struct dirent64, d_name) + taken + 8) / 8 * 8);
    at += entry->d_reclen;
    CHECK(at <= length);
  }
  return (ssize_t)at;
}

int fake_fstatat(int directory, const char *path, struct stat *status, int flags) {
  static const mode_t modes[] = {S_IFREG, S_IFDIR, S_IFLNK, S_IFIFO};
  CHECK(strlen(path) < 256 && kind_of(directory) != 0);
  memset(status, 0, sizeof *status);
  status->st_mode = modes[take_answer() % 4];
  return call_fails() ? -1 : 0;
}

int fake_fstat(int fd, struct stat *status) {
  static const mode_t modes[] = {S_IFREG, S_IFREG, S_IFREG, S_IFIFO};
  CHECK(kind_of(fd) != 0);
  memset(status, 0, sizeof *status);
  status->st_mode = modes[take_answer() % 4];
  status->st_size = (off_t)take_answer() << (take_answer() % 32);
  return call_fails() ? -1 : 0;
}

int fake_getrusage(int who, struct rusage *usage) { return memset(usage, 0, sizeof *usage), 0; }

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  char name[] = "search", tools[] = "/tools", recursive[] = "1", workers[] = "1", max[8],
       time[] = "5000", ignore_case[] = "0", trial[] = "0", plain[] = "0", rg_pattern[] = "p",
       grep_pattern[] = "p", text[] = "pq";
  char *arguments[] = {name,  tools, recursive,  workers,      max,  time, ignore_case,
                       trial, plain, rg_pattern, grep_pattern, text, NULL};
  begin_input(bytes, length);
  begin_kernel(3);
  begin_processes();
  uint8_t how = take_u8(), further = take_u8();
  allow_failures(how & 1);
  recursive[0] = how & 2 ? '1' : '0';
  workers[0] = (char)('1' + (how >> 2 & 3));
  matches_max = 1 + (how >> 5) * 3u;
  if (how & 16) rg_pattern[0] = '\0';
  if (further & 1) trial[0] = '1';
  if (further & 2) text[0] = '\0';
  if ((further & 6) == 4) plain[0] = '1'; /* The text is all of the pattern. */
  sprintf(max, "%zu", matches_max);
  frame_length = matches = entries = thread_count = 0;
  memset(has_byte, 0, sizeof has_byte);
  turn = NULL;
  has_ended = false;
  run_subject(12, arguments);
  CHECK(has_ended || (how & 1) != 0);
  CHECK(!has_ended || frame_length == 0);
  end_input();
  return 0;
}
