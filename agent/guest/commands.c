#define _GNU_SOURCE
#include "commands.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "channel.h"
#include "freeze.h"
#include "hook.h"
#include "mounts.h"
#include "power.h"
#include "process.h"
#include "settings.h"
#include "trim.h"

enum {
  STAGED_MAX =
      LIMIT_COMMAND_MAX + 1 + LIMIT_ENVIRONMENT_MAX + LIMIT_DIRECTORY_MAX + 1 + LIMIT_USER_MAX + 1
};

/* Texts too long for a frame, collected for the request that follows them. */
static char *staged;
static size_t staged_length;

static void drop_staged(void) {
  free(staged);
  staged = NULL;
  staged_length = 0;
}

void commands_forget_host(void) {
  drop_staged();
  freeze_forget_host();
  end_hook();
  mounts_forget_host();
  trim_forget_host();
}

/*
 * A piece that does not fit is dropped; the request is then refused, since its lengths do not
 * match.
 */
static void stage(struct reader *reader) {
  size_t length = reader->left;
  const uint8_t *bytes = take_bytes(reader, length);
  if (staged_length + length > STAGED_MAX) return;
  char *grown = realloc(staged, staged_length + length + 1);
  if (grown == NULL) return;
  staged = grown;
  memcpy(staged + staged_length, bytes, length);
  staged_length += length;
}

/* True for exactly one text with the NUL that ends it. */
static bool is_text(const char *bytes, size_t length, size_t max) {
  return length > 0 && length <= max + 1 && memchr(bytes, '\0', length) == bytes + length - 1;
}

static bool is_environment(const char *bytes, size_t length) {
  size_t entries = 0;
  if (length > LIMIT_ENVIRONMENT_MAX || (length > 0 && bytes[length - 1] != '\0')) return false;
  for (size_t at = 0; at < length; at++) entries += bytes[at] == '\0';
  return entries <= LIMIT_ENVIRONMENT_ENTRIES_MAX;
}

static void configure(uint32_t request, struct reader *reader) {
  static struct settings settings;
  const char *step = "";
  settings.clock_us = take_number(reader, 8);
  settings.entropy_length = take_number(reader, 2);
  settings.entropy = take_bytes(reader, settings.entropy_length);
  take_text(reader, 1, settings.hostname, LIMIT_HOSTNAME_MAX);
  settings.machine_id = take_bytes(reader, ID_BYTES);
  settings.boot_id = take_bytes(reader, ID_BYTES);
  struct network_settings *network = &settings.network;
  take_text(reader, 1, network->interface, sizeof network->interface - 1);
  network->address = (uint32_t)take_number(reader, 4);
  network->prefix_bits = (uint8_t)take_number(reader, 1);
  network->gateway = (uint32_t)take_number(reader, 4);
  settings.resolver = (uint32_t)take_number(reader, 4);
  network->mtu_bytes = (uint16_t)take_number(reader, 2);
  take_text(reader, 1, settings.root_device, sizeof settings.root_device - 1);
  take_text(reader, 1, settings.root_type, sizeof settings.root_type - 1);
  take_text(reader, 2, settings.directory, LIMIT_DIRECTORY_MAX);
  take_text(reader, 1, settings.user, LIMIT_USER_MAX);
  settings.environment = staged_length == 0 ? "" : staged;
  settings.environment_length = take_number(reader, 4);
  bool valid = took_all(reader) && settings.entropy_length >= LIMIT_ENTROPY_MIN &&
               settings.entropy_length <= LIMIT_ENTROPY_MAX && settings.hostname[0] != '\0' &&
               network->prefix_bits <= 32 && settings.environment_length == staged_length &&
               is_environment(settings.environment, settings.environment_length);
  if (!valid) return answer_failed(request, FAILURE_INVALID);
  int error = apply_settings(&settings, &step);
  if (error != 0) return answer_error(request, step, error);
  answer_done(request);
}

static void start(uint32_t request, struct reader *reader) {
  struct process_spec spec = {0};
  const uint8_t *id = take_bytes(reader, ID_BYTES);
  spec.flags = (uint8_t)take_number(reader, 1);
  spec.columns = (uint16_t)take_number(reader, 2);
  spec.rows = (uint16_t)take_number(reader, 2);
  spec.timeout_ms = take_number(reader, 4);
  size_t command_bytes = take_number(reader, 4);
  spec.environment_length = take_number(reader, 4);
  size_t directory_bytes = take_number(reader, 4);
  size_t user_bytes = take_number(reader, 4);
  size_t text_bytes = command_bytes + spec.environment_length + directory_bytes + user_bytes;
  bool valid = took_all(reader) && text_bytes == staged_length && staged_length > 0;
  if (!valid) return answer_failed(request, FAILURE_INVALID);
  memcpy(spec.id, id, ID_BYTES);
  spec.command = staged;
  spec.command_length = command_bytes - 1;
  spec.environment = staged + command_bytes;
  spec.directory = spec.environment + spec.environment_length;
  spec.user = spec.directory + directory_bytes;
  valid = is_text(spec.command, command_bytes, LIMIT_COMMAND_MAX) &&
          is_environment(spec.environment, spec.environment_length) &&
          is_text(spec.directory, directory_bytes, LIMIT_DIRECTORY_MAX) &&
          is_text(spec.user, user_bytes, LIMIT_USER_MAX);
  if (!valid) return answer_failed(request, FAILURE_INVALID);
  if (!is_configured()) return answer_failed(request, FAILURE_NOT_CONFIGURED);
  if (is_frozen()) return answer_failed(request, FAILURE_FROZEN);
  if (is_shutting_down()) return answer_failed(request, FAILURE_BUSY);
  start_process(&spec, request);
}

static void start_operation(uint32_t request, struct reader *reader) {
  struct process_spec spec = {.flags = FLAG_STDIN | FLAG_FOLLOWED | FLAG_SESSION};
  const uint8_t *id = take_bytes(reader, ID_BYTES);
  spec.operation_length = reader->left;
  spec.operation = take_bytes(reader, reader->left);
  if (!took_all(reader) || spec.operation_length == 0)
    return answer_failed(request, FAILURE_INVALID);
  memcpy(spec.id, id, ID_BYTES);
  if (!is_configured()) return answer_failed(request, FAILURE_NOT_CONFIGURED);
  if (is_frozen()) return answer_failed(request, FAILURE_FROZEN);
  if (is_shutting_down()) return answer_failed(request, FAILURE_BUSY);
  start_process(&spec, request);
}

static void put_record(struct writer *writer, const struct process *process) {
  uint8_t flags = 0;
  if (process->terminal) flags |= FLAG_TERMINAL;
  if (process->streams.stdin_open && !process->streams.close_stdin_due) flags |= FLAG_STDIN;
  if (process->streams.is_retained) flags |= FLAG_FOLLOWED;
  if (process->reported) flags |= FLAG_EXITED;
  if (process->session) flags |= FLAG_SESSION;
  flags |= process_end_flags(process);
  put_bytes(writer, process->id, ID_BYTES);
  put_number(writer, (uint64_t)process->pid, 4);
  put_number(writer, flags, 1);
  put_number(writer, process->reported ? process->status : 0, 1);
  put_number(writer, process->columns, 2);
  put_number(writer, process->rows, 2);
  put_number(writer, 0, 2);
  put_number(writer, process->streams.ring.oldest, 8);
  put_number(writer, process->streams.ring.end, 8);
  put_number(writer, process->streams.acked, 8);
  put_number(writer, process->streams.stdin_received, 8);
  put_number(writer, streams_taken(&process->streams), 8);
  put_number(writer, process->reported ? process_since_end_ms(process) : 0, 8);
}

/* `next` is the index to ask for next, or 0 on the last page. */
static void list(uint32_t request, uint32_t index) {
  const struct process *page[LIMIT_RECORDS_PER_PAGE_MAX];
  uint32_t length = 0;
  for (const struct process *process;
       length < LIMIT_RECORDS_PER_PAGE_MAX && (process = next_process(&index)) != NULL; index++)
    page[length++] = process;
  struct writer *writer = new_frame(KIND_RECORDS, request);
  put_number(writer, next_process(&index) == NULL ? 0 : index, 4);
  for (uint32_t at = 0; at < length; at++) put_record(writer, page[at]);
  send_frame(writer);
}

/* The number after the name in a file of /proc with a line for each name. */
static uint64_t figure(const char *path, const char *name) {
  char line[256];
  unsigned long long value = 0;
  FILE *file = fopen(path, "re");
  if (file == NULL) return 0;
  while (fgets(line, sizeof line, file) != NULL)
    if (strncmp(line, name, strlen(name)) == 0) sscanf(line + strlen(name), "%llu", &value);
  fclose(file);
  return value;
}

static void stats(uint32_t request) {
  uint64_t total = figure("/proc/meminfo", "MemTotal:") * KIB;
  uint64_t available = figure("/proc/meminfo", "MemAvailable:") * KIB;
  uint64_t kills = figure("/proc/vmstat", "oom_kill ");
  struct writer *writer = new_frame(KIND_FIGURES, request);
  put_number(writer, total, 8);
  put_number(writer, available, 8);
  put_number(writer, ring_bytes_reserved(), 8);
  put_number(writer, processes_count(), 4);
  put_number(writer, kills, 8);
  send_frame(writer);
}

static void answer_result(uint32_t request, const char *step, int error) {
  if (error != 0) return answer_error(request, step, error);
  answer_done(request);
}

static void read_clock(uint32_t request) {
  struct writer *writer = new_frame(KIND_TIME, request);
  put_number(writer, time_by(CLOCK_REALTIME), 8);
  put_number(writer, time_by(CLOCK_MONOTONIC), 8);
  send_frame(writer);
}

static void handle_clock(uint8_t kind, uint32_t request, struct reader *reader) {
  uint64_t zero_us = kind == KIND_SET_CLOCK ? take_number(reader, 8) : 0;
  if (!took_all(reader)) return answer_failed(request, FAILURE_INVALID);
  if (kind == KIND_READ_CLOCK) return read_clock(request);
  answer_result(request, "clock", set_clock_by_zero(zero_us));
}

static void resize(uint32_t request, struct process *process, struct reader *reader) {
  uint16_t columns = (uint16_t)take_number(reader, 2), rows = (uint16_t)take_number(reader, 2);
  if (!took_all(reader)) return answer_failed(request, FAILURE_INVALID);
  if (!process->terminal) return answer_failed(request, FAILURE_UNSUPPORTED);
  answer_result(request, "resize", process_resize(process, columns, rows));
}

static void follow(uint32_t request, struct process *process, struct reader *reader) {
  uint64_t offset = take_number(reader, 8);
  if (!took_all(reader)) return answer_failed(request, FAILURE_INVALID);
  offset = streams_follow(&process->streams, offset);
  struct writer *writer = new_frame(KIND_FOLLOWED, request);
  put_number(writer, offset, 8);
  send_frame(writer);
}

static void forget(uint32_t request, struct process *process) {
  if (!process->reported) return answer_failed(request, FAILURE_BUSY);
  forget_process(process);
  answer_done(request);
}

/* Input and acknowledgements get no answer, even when their process is gone. */
static bool handle_flow(uint8_t kind, struct reader *reader) {
  if (kind != KIND_STDIN && kind != KIND_ACK) return false;
  const uint8_t *id = take_bytes(reader, ID_BYTES);
  uint64_t offset = take_number(reader, 8);
  struct process *process = reader->valid ? find_process(id) : NULL;
  if (process == NULL) return true;
  size_t length = reader->left;
  if (kind == KIND_ACK) {
    if (length == 0) streams_ack(&process->streams, offset);
  } else {
    streams_write(&process->streams, offset, take_bytes(reader, length), length);
  }
  return true;
}

static void handle_process(uint8_t kind, uint32_t request, struct reader *reader) {
  const uint8_t *id = take_bytes(reader, ID_BYTES);
  if (id == NULL) return answer_failed(request, FAILURE_INVALID);
  struct process *process = find_process(id);
  if (process == NULL) return answer_failed(request, FAILURE_UNKNOWN_PROCESS);
  uint64_t number;
  switch (kind) {
    case KIND_CLOSE_STDIN:
      number = take_number(reader, 8);
      if (!took_all(reader) || !streams_close_stdin(&process->streams, number))
        return answer_failed(request, FAILURE_INVALID);
      return answer_done(request);
    case KIND_SIGNAL:
      number = take_number(reader, 1);
      if (!took_all(reader)) return answer_failed(request, FAILURE_INVALID);
      return answer_result(request, "signal", process_signal(process, (int)number));
    case KIND_RESIZE:
      return resize(request, process, reader);
    case KIND_FOLLOW:
      return follow(request, process, reader);
    case KIND_KILL:
      if (!took_all(reader)) return answer_failed(request, FAILURE_INVALID);
      return answer_result(request, "kill", process_kill(process));
    case KIND_UNFOLLOW:
      if (!took_all(reader)) return answer_failed(request, FAILURE_INVALID);
      streams_unfollow(&process->streams);
      return answer_done(request);
    case KIND_FORGET:
      if (!took_all(reader)) return answer_failed(request, FAILURE_INVALID);
      return forget(request, process);
    default:
      return answer_failed(request, FAILURE_UNSUPPORTED);
  }
}

static void handle_shutdown(uint32_t request, uint32_t grace_ms) {
  if (grace_ms > LIMIT_SHUTDOWN_MS_MAX) return answer_failed(request, FAILURE_INVALID);
  answer_done(request);
  begin_shutdown(grace_ms, true);
}

static void handle_freeze(uint32_t request, uint32_t timeout_ms) {
  if (timeout_ms > LIMIT_FREEZE_MS_MAX) return answer_failed(request, FAILURE_INVALID);
  freeze(timeout_ms, request);
}

static void handle_trim(uint32_t request, uint32_t budget_ms) {
  if (budget_ms > LIMIT_TRIM_MS_MAX) return answer_failed(request, FAILURE_INVALID);
  if (is_frozen() || is_shutting_down()) return answer_failed(request, FAILURE_BUSY);
  trim_root(budget_ms, request);
}

static void handle_recovery(uint32_t request) {
  if (!is_frozen() || is_shutting_down()) return answer_failed(request, FAILURE_BUSY);
  recover_locks(request);
}

/* A hook that still runs has no host that waits for it. */
static void handle_thaw(uint32_t request) {
  end_hook();
  thaw(request);
}

/* Requests about the guest as a whole, with at most one number. */
static bool handle_guest(uint8_t kind, uint32_t request, struct reader *reader) {
  bool has_number =
      kind == KIND_LIST || kind == KIND_FREEZE || kind == KIND_SHUTDOWN || kind == KIND_TRIM;
  bool has_none =
      kind == KIND_PING || kind == KIND_STATS || kind == KIND_THAW || kind == KIND_RECOVER_LOCKS;
  if (!has_number && !has_none) return false;
  uint32_t number = has_number ? (uint32_t)take_number(reader, 4) : 0;
  if (!took_all(reader))
    answer_failed(request, FAILURE_INVALID);
  else if (kind == KIND_PING)
    answer_done(request);
  else if (kind == KIND_STATS)
    stats(request);
  else if (kind == KIND_THAW)
    handle_thaw(request);
  else if (kind == KIND_RECOVER_LOCKS)
    handle_recovery(request);
  else if (kind == KIND_LIST)
    list(request, number);
  else if (kind == KIND_FREEZE)
    handle_freeze(request, number);
  else if (kind == KIND_TRIM)
    handle_trim(request, number);
  else
    handle_shutdown(request, number);
  return true;
}

static void handle_mount(uint32_t request, struct reader *reader) {
  static struct disk_mount disk;
  disk.server = (uint32_t)take_number(reader, 4);
  disk.read_only = take_number(reader, 1) != 0;
  take_text(reader, 1, disk.export, sizeof disk.export - 1);
  take_text(reader, 2, disk.path, sizeof disk.path - 1);
  if (!took_all(reader) || disk.export[0] == '\0' || disk.path[0] != '/')
    return answer_failed(request, FAILURE_INVALID);
  if (!is_configured()) return answer_failed(request, FAILURE_NOT_CONFIGURED);
  if (is_frozen() || is_shutting_down()) return answer_failed(request, FAILURE_BUSY);
  mount_disk(&disk, request);
}

static void handle_hook(uint32_t request, struct reader *reader) {
  static char command[LIMIT_HOOK_MAX + 1];
  uint32_t timeout_ms = (uint32_t)take_number(reader, 4);
  take_text(reader, 2, command, LIMIT_HOOK_MAX);
  if (!took_all(reader) || command[0] == '\0' || timeout_ms > LIMIT_HOOK_MS_MAX)
    return answer_failed(request, FAILURE_INVALID);
  if (!is_configured()) return answer_failed(request, FAILURE_NOT_CONFIGURED);
  if (!is_frozen() || is_shutting_down()) return answer_failed(request, FAILURE_BUSY);
  run_hook(command, strlen(command), timeout_ms, request);
}

void handle_command(uint8_t kind, uint32_t request, struct reader *reader) {
  if (kind == KIND_STAGE) return stage(reader);
  if (kind == KIND_FILES) return start_operation(request, reader);
  if (handle_flow(kind, reader) || handle_guest(kind, request, reader)) return;
  if (kind == KIND_MOUNT) return handle_mount(request, reader);
  if (kind == KIND_HOOK) return handle_hook(request, reader);
  if (kind == KIND_READ_CLOCK || kind == KIND_SET_CLOCK) return handle_clock(kind, request, reader);
  if (kind != KIND_CONFIGURE && kind != KIND_START) return handle_process(kind, request, reader);
  if (kind == KIND_CONFIGURE)
    configure(request, reader);
  else
    start(request, reader);
  drop_staged();
}
