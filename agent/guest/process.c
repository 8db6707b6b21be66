#define _GNU_SOURCE
#include "process.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel.h"

/* How long output is awaited from children that still hold it when the shell has ended. */
enum { DRAIN_MS = 1000 };

static struct process *table[LIMIT_PROCESSES_MAX];
static uint32_t count;
/* The entries after this one are empty: at every event the table is gone through several times. */
static uint32_t table_end;
static uint64_t retain_ms = LIMIT_RETAIN_MS;

/* Ids of evicted processes that the present host must still be told of. */
static uint8_t evicted[LIMIT_PROCESSES_MAX][ID_BYTES];
static uint32_t evicted_count;

static uint32_t turn; /* Round robin: a process with much output must not silence the others. */

struct process *find_process(const uint8_t *id) {
  for (uint32_t index = 0; index < table_end; index++)
    if (table[index] != NULL && memcmp(table[index]->id, id, ID_BYTES) == 0) return table[index];
  return NULL;
}

struct process *next_process(uint32_t *index) {
  while (*index < table_end && table[*index] == NULL) (*index)++;
  return *index < table_end ? table[*index] : NULL;
}

uint32_t processes_count(void) { return count; }

static void remove_process(struct process *process) {
  streams_close(&process->streams);
  watch_close(&process->failure);
  table[process->index] = NULL;
  while (table_end > 0 && table[table_end - 1] == NULL) table_end--;
  count--;
  free(process);
}

/* Learns whether the shell was executed. False: it was not, and the process has been removed. */
static bool learn_start(struct process *process) {
  struct spawn_failure failure;
  ssize_t got = read(process->failure.fd, &failure, sizeof failure);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  watch_close(&process->failure);
  process->starting = false;
  uint32_t request = process->start_request;
  process->start_request = 0;
  if (got != sizeof failure) {
    if (request == 0) return true;
    struct writer *writer = new_frame(KIND_STARTED, request);
    put_number(writer, (uint64_t)process->pid, 4);
    send_frame(writer);
    return true;
  }
  /* Its host is gone: it stays, as a process that ended at once, for the next host to find. */
  if (request == 0) return true;
  failure.step[sizeof failure.step - 1] = '\0';
  answer_error(request, failure.step, failure.error);
  remove_process(process);
  return false;
}

static void failure_ready(struct watch *watch) {
  learn_start((struct process *)((char *)watch - offsetof(struct process, failure)));
}

static struct process *add_process(const struct process_spec *spec) {
  uint32_t index = 0;
  while (index < LIMIT_PROCESSES_MAX && table[index] != NULL) index++;
  if (index == LIMIT_PROCESSES_MAX) return NULL;
  struct process *process = calloc(1, sizeof *process);
  if (process == NULL) return NULL;
  memcpy(process->id, spec->id, ID_BYTES);
  process->index = index;
  process->terminal = spec->flags & FLAG_TERMINAL;
  process->session = spec->flags & FLAG_SESSION;
  process->on_files = spec->operation != NULL;
  process->streams.ring.capacity_max = process->on_files ? LIMIT_FILE_RING : 0;
  process->timeout_at_ms = spec->timeout_ms == 0 ? 0 : now_ms() + spec->timeout_ms;
  process->columns = spec->columns;
  process->rows = spec->rows;
  process->streams.is_terminal = process->terminal;
  process->streams.is_retained = process->streams.is_followed = spec->flags & FLAG_FOLLOWED;
  process->streams.input.fd = process->failure.fd = -1;
  table[index] = process;
  if (index >= table_end) table_end = index + 1;
  count++;
  return process;
}

static uint32_t file_operations(void) {
  uint32_t index = 0, found = 0;
  for (struct process *process; (process = next_process(&index)) != NULL; index++)
    found += process->on_files;
  return found;
}

void start_process(const struct process_spec *spec, uint32_t request) {
  if (spec->operation != NULL && file_operations() >= LIMIT_FILE_OPERATIONS_MAX)
    return answer_failed(request, FAILURE_BUSY);
  if (find_process(spec->id) != NULL) return answer_failed(request, FAILURE_PROCESS_EXISTS);
  if (count == LIMIT_PROCESSES_MAX) evict_process();
  struct process *process = add_process(spec);
  if (process == NULL) return answer_failed(request, FAILURE_TOO_MANY_PROCESSES);
  struct spawned spawned;
  int error = spawn(spec, &spawned);
  if (error != 0) {
    remove_process(process);
    return answer_error(request, "spawn", error);
  }
  process->pid = spawned.pid;
  process->starting = true;
  process->start_request = request;
  process->failure = (struct watch){.fd = spawned.failure, .ready = failure_ready};
  bool opened = streams_open(&process->streams, &spawned) == 0;
  if (opened && !learn_start(process)) return;
  if (opened && (!process->starting || watch_for(&process->failure, EPOLLIN) == 0)) return;
  kill(spawned.pid, SIGKILL);
  remove_process(process);
  answer_error(request, "streams", ENOMEM);
}

int process_resize(struct process *process, uint16_t columns, uint16_t rows) {
  int error = streams_resize(&process->streams, columns, rows);
  if (error != 0) return error;
  process->columns = columns;
  process->rows = rows;
  return 0;
}

int process_signal(struct process *process, int number) {
  /* After the end its pid may belong to another process. */
  if (process->ended || kill(-process->pid, number) == 0) return 0;
  /* Between fork and setsid there is no group yet. */
  if (errno == ESRCH && kill(process->pid, number) == 0) return 0;
  return errno == ESRCH ? 0 : errno;
}

int process_kill(struct process *process) {
  if (process->ended) return 0;
  process->killed = true;
  return process_signal(process, SIGKILL);
}

void forget_process(struct process *process) { remove_process(process); }

void set_retention(uint64_t ms) { retain_ms = ms; }

/* A followed process stays, because a client is reading its output. */
static bool is_evictable(const struct process *process) {
  return process->session && process->reported && !process->streams.is_followed;
}

static bool evict(struct process *process) {
  if (evicted_count == LIMIT_PROCESSES_MAX) return false;
  memcpy(evicted[evicted_count++], process->id, ID_BYTES);
  remove_process(process);
  return true;
}

bool evict_process(void) {
  struct process *first = NULL;
  uint32_t index = 0;
  for (struct process *process; (process = next_process(&index)) != NULL; index++)
    if (is_evictable(process) && (first == NULL || process->ended_at_ms < first->ended_at_ms))
      first = process;
  return first != NULL && evict(first);
}

uint8_t process_end_flags(const struct process *process) {
  if (!process->reported) return 0;
  return (uint8_t)((process->by_signal ? FLAG_SIGNALLED : 0) | (process->killed ? FLAG_KILLED : 0) |
                   (process->timed_out ? FLAG_TIMED_OUT : 0));
}

static uint64_t drain_until_ms(const struct process *process) {
  return process->ended_at_ms + DRAIN_MS;
}

static bool is_late(const struct process *process) { return now_ms() >= drain_until_ms(process); }

static void finish_draining(struct process *process) {
  /* The rest of the pipes may be the shell's own output. */
  if (is_late(process)) streams_read_owed(&process->streams);
  if (!streams_are_drained(&process->streams, is_late(process))) return;
  streams_leave(&process->streams);
  process->reported = process->exit_due = true;
}

void process_reaped(pid_t pid, int status) {
  for (uint32_t index = 0; index < table_end; index++) {
    struct process *process = table[index];
    if (process == NULL || process->pid != pid || process->ended) continue;
    if (process->starting && !learn_start(process)) return;
    process->ended = true;
    process->by_signal = WIFSIGNALED(status);
    process->status = (uint8_t)(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    process->ended_at_ms = now_ms();
    streams_note_owed(&process->streams);
    return;
  }
}

uint64_t process_since_end_ms(const struct process *process) {
  return process->ended ? now_ms() - process->ended_at_ms : 0;
}

bool processes_have_ended(void) {
  uint32_t index = 0;
  for (struct process *process; (process = next_process(&index)) != NULL; index++)
    if (!process->reported || process->exit_due) return false;
  return true;
}

/* Each returns when it is to be called again. */

static uint64_t tick_running(struct process *process) {
  if (process->timeout_at_ms == 0) return UINT64_MAX;
  if (now_ms() < process->timeout_at_ms) return process->timeout_at_ms;
  process->timeout_at_ms = 0;
  process->timed_out = true;
  process_signal(process, SIGKILL);
  return UINT64_MAX;
}

static uint64_t tick_draining(struct process *process) {
  finish_draining(process);
  if (process->reported) return 0; /* The end can be reported at once. */
  if (is_late(process) && streams_wait_for_host(&process->streams)) return UINT64_MAX;
  return drain_until_ms(process);
}

static uint64_t tick_retained(struct process *process) {
  if (!is_evictable(process)) return UINT64_MAX;
  uint64_t until_ms = process->ended_at_ms + retain_ms;
  if (now_ms() < until_ms) return until_ms;
  evict(process);
  return UINT64_MAX;
}

uint64_t processes_tick(void) {
  uint64_t next = UINT64_MAX;
  uint32_t index = 0;
  for (struct process *process; (process = next_process(&index)) != NULL; index++) {
    uint64_t due = !process->ended      ? tick_running(process)
                   : !process->reported ? tick_draining(process)
                                        : tick_retained(process);
    if (due < next) next = due;
  }
  return next;
}

/*
 * Ends what a former host did with files. The signal comes before the end of its input, and lets an
 * upload remove what it has begun.
 */
static void end_file_operations(void) {
  uint32_t index = 0;
  for (struct process *process; (process = next_process(&index)) != NULL; index++) {
    if (!process->on_files) continue;
    if (!process->ended) kill(process->pid, SIGTERM);
    remove_process(process);
  }
}

void processes_forget_host(void) {
  end_file_operations();
  uint32_t index = 0;
  for (struct process *process; (process = next_process(&index)) != NULL; index++) {
    process->streams.is_followed = process->streams.taken_due = false;
    process->exit_due = false;
    process->start_request = 0;
  }
  evicted_count = 0;
}

void processes_release(void) {
  uint32_t index = 0;
  for (struct process *process; (process = next_process(&index)) != NULL; index++)
    if (process->session) streams_unfollow(&process->streams);
}

static bool compose_evicted(struct writer *writer) {
  if (evicted_count == 0) return false;
  begin_frame(writer, KIND_EVICTED, 0);
  put_bytes(writer, evicted[--evicted_count], ID_BYTES);
  return true;
}

static bool compose_exit(struct process *process, struct writer *writer) {
  if (!process->exit_due) return false;
  process->exit_due = false;
  begin_frame(writer, KIND_EXITED, 0);
  put_bytes(writer, process->id, ID_BYTES);
  put_number(writer, process_end_flags(process), 1);
  put_number(writer, process->status, 1);
  put_number(writer, process->streams.ring.end, 8);
  put_number(writer, process_since_end_ms(process), 8);
  return true;
}

static bool compose_taken(struct process *process, struct writer *writer) {
  if (!process->streams.taken_due) return false;
  process->streams.taken_due = false;
  begin_frame(writer, KIND_TAKEN, 0);
  put_bytes(writer, process->id, ID_BYTES);
  put_number(writer, streams_taken(&process->streams), 8);
  return true;
}

static bool compose_output(struct process *process, struct writer *writer) {
  uint64_t offset;
  size_t length;
  int stream;
  const uint8_t *bytes = streams_next_output(&process->streams, &offset, &length, &stream);
  if (bytes == NULL) return false;
  begin_frame(writer, KIND_OUTPUT, 0);
  put_bytes(writer, process->id, ID_BYTES);
  put_number(writer, (uint64_t)stream, 1);
  put_number(writer, offset, 8);
  put_bytes(writer, bytes, length);
  return true;
}

bool processes_compose(struct writer *writer) {
  if (compose_evicted(writer)) return true;
  for (uint32_t passed = 0; passed < table_end; passed++) {
    turn = (turn + 1) % table_end;
    struct process *process = table[turn];
    if (process == NULL || process->starting) continue;
    if (compose_taken(process, writer) || compose_output(process, writer)) return true;
    if (compose_exit(process, writer)) return true;
  }
  return false;
}
