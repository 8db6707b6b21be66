/*
 * Runs a rg or grep process with a batch of files, and reads its output (ripgrep 13 and 14; GNU
 * grep prints no line of the second kind):
 *
 *   <path> NUL <line number> : <text> LF
 *   <path> : binary file matches (found "\0" byte around offset <n>) LF
 *
 * Files come in the order of the batch. That a file is binary is said after its matches, so those
 * of one file are held back until the next file's or the end. A file whose held matches fill
 * HELD_BYTES_MAX, or are as many as still wanted, counts as text.
 */
#define _GNU_SOURCE
#include "search-worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  LINE_DIGITS_MAX = 20,
  INPUT_BYTES = PATH_BYTES_MAX + LINE_DIGITS_MAX + 2 + 2 * TEXT_BYTES_MAX,
};

static const char BINARY[] = ": binary file matches (found ";

enum parsed { RECORD, MORE, WRONG };

enum { ARGUMENTS_MAX = 20 };

const char *engine_name(const struct tools *tools) {
  return tools->rg_pattern == NULL ? "grep" : "rg";
}

static size_t rg_arguments(const char *const *start, const char *pattern, const char **into) {
  const char *const arguments[] = {
      start[0],
      start[1],
      start[2],
      start[3],
      "--no-config",
      "--threads=1",
      "--no-heading",
      "--with-filename",
      "--null",
      "--line-number",
      /* Without mmap: a file truncated while it is read would kill the process. */
      "--color=never",
      "--no-mmap",
      "--line-buffered",
      "-e",
      pattern,
      "--",
  };
  memcpy(into, arguments, sizeof arguments);
  return sizeof arguments / sizeof *arguments;
}

/* Binary files are left out before: those that are given are text, whatever bytes they have. */
static size_t grep_arguments(const char *const *start, const struct tools *tools,
                             const char **into) {
  const char *const arguments[] = {
      start[0],
      start[1],
      start[2],
      start[3],
      "--extended-regexp",
      "--text",
      tools->ignores_case ? "--ignore-case" : "--no-ignore-case",
      "--with-filename",
      "--null",
      "--line-number",
      "--color=never",
      "--line-buffered",
      "-e",
      tools->grep_pattern,
      "--",
  };
  memcpy(into, arguments, sizeof arguments);
  return sizeof arguments / sizeof *arguments;
}

/* The host's copies of the programs and their libraries, whatever the container's image has. */
static char **arguments_of(const struct tools *tools, struct batch batch) {
  static char loader[PATH_BYTES_MAX], libraries[PATH_BYTES_MAX], program[PATH_BYTES_MAX];
  const char *const start[] = {loader, "--library-path", libraries, program};
  const char *head[ARGUMENTS_MAX];
  snprintf(loader, sizeof loader, "%s/ld.so", tools->directory);
  snprintf(libraries, sizeof libraries, "%s/lib", tools->directory);
  snprintf(program, sizeof program, "%s/%s", tools->directory, engine_name(tools));
  size_t count = tools->rg_pattern == NULL ? grep_arguments(start, tools, head)
                                           : rg_arguments(start, tools->rg_pattern, head);
  char **arguments = allocate(NULL, (count + batch.count + 1) * sizeof *arguments);
  memcpy(arguments, head, count * sizeof *head);
  memcpy(arguments + count, batch.paths, batch.count * sizeof *arguments);
  arguments[count + batch.count] = NULL;
  return arguments;
}

bool worker_start(struct worker *worker, const struct tools *tools, struct batch batch) {
  static char locale[] = "LC_ALL=C.UTF-8", locales[9 + PATH_BYTES_MAX];
  char *environment[] = {locale, locales, NULL};
  int ends[2];
  posix_spawn_file_actions_t actions;
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  snprintf(locales, sizeof locales, "LOCPATH=%s/locale", tools->directory);
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, tools->errors, STDERR_FILENO);
  char **arguments = arguments_of(tools, batch);
  int error = posix_spawn(&worker->pid, arguments[0], &actions, NULL, arguments, environment);
  free(arguments);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    worker->pid = 0;
    errno = error;
    return false;
  }
  if (worker->input == NULL) worker->input = allocate(NULL, INPUT_BYTES);
  worker->output = ends[0];
  worker->begun_at = now_us();
  worker->batch = batch;
  return true;
}

void worker_keep(struct worker *worker, struct results *results) {
  if (write_held(&worker->held, results)) worker->kept = true;
}

static void move_to(struct worker *worker, size_t index, struct results *results) {
  if (worker->seen && index == worker->current) return;
  worker_keep(worker, results);
  worker->current = index;
  worker->seen = true;
  worker->kept = false;
}

/* The index of the file with this path, from the current one on; the count if there is none. */
static size_t find_path(const struct worker *worker, const char *text) {
  size_t index = worker->current;
  while (index < worker->batch.count && strcmp(worker->batch.paths[index], text) != 0) index++;
  return index;
}

static enum parsed parse_binary(struct worker *worker, size_t *at, struct results *results) {
  const char *text = worker->input + *at;
  size_t left = worker->length - *at;
  for (size_t index = worker->current; index < worker->batch.count; index++) {
    size_t length = strlen(worker->batch.paths[index]);
    if (left <= length || memcmp(text, worker->batch.paths[index], length) != 0) continue;
    if (left < length + sizeof BINARY - 1) continue;
    if (memcmp(text + length, BINARY, sizeof BINARY - 1) != 0) continue;
    const char *end = memchr(text + length, '\n', left - length);
    if (end == NULL) return MORE;
    move_to(worker, index, results);
    worker->held.length = worker->held.count = 0;
    *at += (size_t)(end + 1 - text);
    return RECORD;
  }
  return left < PATH_BYTES_MAX + sizeof BINARY ? MORE : WRONG;
}

/* Cuts at a character boundary of UTF-8. */
static size_t cut_length(const char *text) {
  size_t length = TEXT_BYTES_MAX;
  while (length > TEXT_BYTES_MAX - 3 && (text[length] & 0xc0) == 0x80) length--;
  return length;
}

/* Parses one record of the input. */
static enum parsed parse_record(struct worker *worker, size_t *at, struct results *results) {
  const char *text = worker->input + *at;
  size_t left = worker->length - *at;
  const char *path_end = memchr(text, '\0', left);
  size_t index = path_end == NULL ? worker->batch.count : find_path(worker, text);
  if (index == worker->batch.count) return parse_binary(worker, at, results);
  const char *end = text + left, *from = path_end + 1;
  uint64_t line = 0;
  for (; from < end && *from >= '0' && *from <= '9'; from++)
    line = line * 10 + (uint64_t)(*from - '0');
  if (from == end) return MORE;
  if (*from != ':') return WRONG;
  from++;
  const char *line_end = memchr(from, '\n', (size_t)(end - from));
  size_t length = (size_t)((line_end == NULL ? end : line_end) - from);
  bool truncated = length > TEXT_BYTES_MAX;
  if (line_end == NULL && !truncated) return MORE;
  move_to(worker, index, results);
  /* Without "./". */
  const char *path = worker->batch.paths[worker->current] + 2;
  size_t kept = truncated ? cut_length(from) : length;
  hold(&worker->held, &(struct match){path, line, from, kept, truncated});
  bool enough = results->count + worker->held.count >= results->max;
  if (enough || worker->held.length >= HELD_BYTES_MAX) worker_keep(worker, results);
  worker->skipping = line_end == NULL;
  *at += (size_t)((line_end == NULL ? end : line_end + 1) - text);
  return RECORD;
}

static void skip_line(struct worker *worker, size_t *at) {
  const char *from = worker->input + *at;
  const char *end = memchr(from, '\n', worker->length - *at);
  worker->skipping = end == NULL;
  *at = end == NULL ? worker->length : (size_t)(end + 1 - worker->input);
}

bool worker_read(struct worker *worker, struct results *results) {
  size_t at = 0;
  ssize_t count =
      read(worker->output, worker->input + worker->length, INPUT_BYTES - worker->length);
  if (count <= 0) return count < 0 && errno == EINTR;
  worker->length += (size_t)count;
  while (at < worker->length && results->count < results->max) {
    if (worker->skipping) {
      skip_line(worker, &at);
      continue;
    }
    enum parsed parsed = parse_record(worker, &at, results);
    if (parsed == MORE && (at > 0 || worker->length < INPUT_BYTES)) break;
    if (parsed != RECORD) {
      note_problem("the search engine printed something that is not expected of it");
      return false;
    }
  }
  memmove(worker->input, worker->input + at, worker->length - at);
  worker->length -= at;
  return true;
}

int worker_end(struct worker *worker, bool killed) {
  int status = 0;
  if (killed) kill(worker->pid, SIGKILL);
  close(worker->output); /* First: the process must not block on a full pipe. */
  while (waitpid(worker->pid, &status, 0) < 0 && errno == EINTR)
    ;
  worker->pid = 0;
  return status;
}

struct batch worker_rest(const struct worker *worker) {
  /* Matches that are written already must not be repeated. */
  size_t first = worker->current + (worker->kept ? 1 : 0);
  return (struct batch){worker->batch.paths + first, worker->batch.count - first};
}

void worker_clear(struct worker *worker) {
  char *input = worker->input;
  struct held held = {worker->held.bytes, 0, worker->held.capacity, 0};
  *worker = (struct worker){.input = input, .held = held};
}
