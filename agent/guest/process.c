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
#include "spawn.h"
#include "streams.h"

enum { DRAIN_MS = 1000 }; /* WIRE 3.7: for children that hold the output when the shell ended. */

static struct process *table[LIMIT_PROCESSES_MAX];
static uint32_t count;
static uint32_t turn; /* Who speaks next, so that a talkative process does not silence others. */

struct process *find_process(const uint8_t *id) {
  for (uint32_t index = 0; index < LIMIT_PROCESSES_MAX; index++)
    if (table[index] != NULL && memcmp(table[index]->id, id, ID_BYTES) == 0) return table[index];
  return NULL;
}

struct process *next_process(uint32_t *index) {
  while (*index < LIMIT_PROCESSES_MAX && table[*index] == NULL) (*index)++;
  return *index < LIMIT_PROCESSES_MAX ? table[*index] : NULL;
}

uint32_t processes_count(void) { return count; }

static void remove_process(struct process *process) {
  close_streams(process);
  watch_close(&process->failure);
  ring_free(&process->ring);
  table[process->index] = NULL;
  count--;
  free(process);
}

/* The shell was executed, or could not be; in the second case nothing of it stays. */
static void learn_start(struct process *process) {
  struct spawn_failure failure;
  ssize_t got = read(process->failure.fd, &failure, sizeof failure);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  watch_close(&process->failure);
  process->starting = false;
  uint32_t request = process->start_request;
  process->start_request = 0;
  if (got != sizeof failure) {
    if (request == 0) return;
    struct writer *writer = new_frame(KIND_STARTED, request);
    put_number(writer, (uint64_t)process->pid, 4);
    send_frame(writer);
    return;
  }
  /* When its host is gone it stays, as a process that ended at once: the next host will ask. */
  if (request == 0) return;
  failure.step[sizeof failure.step - 1] = '\0';
  answer_error(request, failure.step, failure.error);
  remove_process(process);
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
  process->columns = spec->columns;
  process->rows = spec->rows;
  process->kept = process->sending = spec->flags & FLAG_FOLLOWED;
  process->input.fd = process->failure.fd = -1;
  table[index] = process;
  count++;
  return process;
}

void start_process(const struct process_spec *spec, uint32_t request) {
  if (find_process(spec->id) != NULL) return answer_failed(request, FAILURE_PROCESS_EXISTS);
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
  if (open_streams(process, &spawned) != 0 || watch_for(&process->failure, EPOLLIN) != 0) {
    kill(spawned.pid, SIGKILL);
    remove_process(process);
    answer_error(request, "streams", ENOMEM);
  }
}

int process_resize(struct process *process, uint16_t columns, uint16_t rows) {
  if (process->outputs[0] == NULL) return 0; /* It has ended. */
  int error = set_terminal_size(process->outputs[0]->watch.fd, columns, rows);
  if (error != 0) return error;
  process->columns = columns;
  process->rows = rows;
  return 0;
}

int process_signal(struct process *process, int number) {
  /* After its end the number may belong to another process. */
  if (process->ended || kill(-process->pid, number) == 0) return 0;
  /* Between fork and setsid there is no group yet. */
  if (errno == ESRCH && kill(process->pid, number) == 0) return 0;
  return errno == ESRCH ? 0 : errno;
}

uint64_t process_follow(struct process *process, uint64_t offset) {
  if (offset < process->ring.oldest) offset = process->ring.oldest;
  process->acked = process->sent = offset;
  process->kept = process->sending = true;
  resume_outputs(process);
  return offset;
}

void process_unfollow(struct process *process) {
  process->kept = process->sending = false;
  resume_outputs(process);
}

void process_ack(struct process *process, uint64_t offset) {
  if (!process->sending || offset <= process->acked || offset > process->sent) return;
  process->acked = offset;
  resume_outputs(process);
}

void forget_process(struct process *process) { remove_process(process); }

static bool is_drained(const struct process *process) {
  bool late = now_ms() >= process->drain_until_ms;
  for (int index = 0; index < 2; index++) {
    const struct source *source = process->outputs[index];
    if (source != NULL && (!late || source->owed > 0)) return false;
  }
  return true;
}

/* What is left in the pipes is asked for once the time is up: some may still be the shell's. */
static void finish_draining(struct process *process) {
  if (now_ms() >= process->drain_until_ms)
    for (int index = 0; index < 2; index++) {
      struct source *source = process->outputs[index];
      if (source != NULL && !source->paused && source->owed > 0) read_source(source);
    }
  if (!is_drained(process)) return;
  leave_streams(process);
  process->reported = process->exit_due = true;
}

/* The ring is full, and what is owed stays in the pipe until the host acknowledges. */
static bool is_waiting_for_host(const struct process *process) {
  for (int index = 0; index < 2; index++) {
    const struct source *source = process->outputs[index];
    if (source != NULL && source->paused && source->owed > 0) return true;
  }
  return false;
}

void process_reaped(pid_t pid, int status) {
  for (uint32_t index = 0; index < LIMIT_PROCESSES_MAX; index++) {
    struct process *process = table[index];
    if (process == NULL || process->pid != pid || process->ended) continue;
    if (process->starting) {
      learn_start(process);
      if (table[index] == NULL) return;
    }
    process->ended = true;
    process->by_signal = WIFSIGNALED(status);
    process->status = (uint8_t)(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    process->drain_until_ms = now_ms() + DRAIN_MS;
    note_owed(process);
    return;
  }
}

bool processes_have_ended(void) {
  uint32_t index = 0;
  for (struct process *process; (process = next_process(&index)) != NULL; index++)
    if (!process->reported || process->exit_due) return false;
  return true;
}

uint64_t processes_tend(void) {
  uint64_t next = UINT64_MAX;
  uint32_t index = 0;
  for (struct process *process; (process = next_process(&index)) != NULL; index++) {
    if (!process->ended || process->reported) continue;
    finish_draining(process);
    if (process->reported) {
      next = 0; /* Now it can be said. */
      continue;
    }
    bool late = now_ms() >= process->drain_until_ms;
    if (late && is_waiting_for_host(process)) continue;
    if (process->drain_until_ms < next) next = process->drain_until_ms;
  }
  return next;
}

void processes_forget_host(void) {
  uint32_t index = 0;
  for (struct process *process; (process = next_process(&index)) != NULL; index++) {
    process->sending = process->exit_due = process->taken_due = false;
    process->start_request = 0;
  }
}

static bool compose_exit(struct process *process, struct writer *writer) {
  if (!process->exit_due) return false;
  process->exit_due = false;
  begin_frame(writer, KIND_EXITED, 0);
  put_bytes(writer, process->id, ID_BYTES);
  put_number(writer, process->by_signal, 1);
  put_number(writer, process->status, 1);
  put_number(writer, process->ring.end, 8);
  return true;
}

static bool compose_taken(struct process *process, struct writer *writer) {
  if (!process->taken_due) return false;
  process->taken_due = false;
  begin_frame(writer, KIND_TAKEN, 0);
  put_bytes(writer, process->id, ID_BYTES);
  put_number(writer, process->stdin_received - process->stdin_length, 8);
  return true;
}

static bool compose_output(struct process *process, struct writer *writer) {
  if (!process->sending || process->sent >= process->ring.end) return false;
  if (process->sent - process->acked >= LIMIT_OUTPUT_WINDOW) return false;
  size_t length = (size_t)(LIMIT_OUTPUT_WINDOW - (process->sent - process->acked));
  if (length > LIMIT_PAYLOAD_MAX) length = LIMIT_PAYLOAD_MAX;
  int stream;
  const uint8_t *bytes = ring_run(&process->ring, process->sent, &length, &stream);
  if (bytes == NULL) return false;
  begin_frame(writer, KIND_OUTPUT, 0);
  put_bytes(writer, process->id, ID_BYTES);
  put_number(writer, (uint64_t)stream, 1);
  put_number(writer, process->sent, 8);
  put_bytes(writer, bytes, length);
  process->sent += length;
  return true;
}

bool processes_compose(struct writer *writer) {
  for (uint32_t passed = 0; passed < LIMIT_PROCESSES_MAX; passed++) {
    turn = (turn + 1) % LIMIT_PROCESSES_MAX;
    struct process *process = table[turn];
    if (process == NULL || process->starting) continue;
    if (compose_taken(process, writer) || compose_output(process, writer)) return true;
    if (compose_exit(process, writer)) return true;
  }
  return false;
}
