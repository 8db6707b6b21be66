/*
 * Init between an agent that says anything and a command that does anything: what it reports keeps
 * to the protocol, and the command runs with exactly the text that was sent, or the program with
 * exactly the arguments.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "../fuzz.h"
#include "../kernel.h"
#include "../processes.h"

enum { AGENT_FD = 3, COMMAND_MAX = 1 << 20, KIND_AGENT = KIND_OWN, KIND_FILE, POLLS_MAX = 100 };

static uint8_t command[COMMAND_MAX];
static uint32_t head; /* The length as it is sent: its highest bit says that it is a program. */
static size_t command_length, said, reports, file_length;
static int polls;

/* The length, then as much of the command as the agent sends before it goes away. */
static ssize_t read_agent(void *into, size_t length) {
  uint8_t *bytes = into;
  size_t part = take_answer() & 1 ? 1 : length;
  for (size_t index = 0; index < part; index++, said++) {
    if (said >= 4 + command_length) return (ssize_t)index;
    bytes[index] = said < 4 ? (uint8_t)(head >> 8 * said) : command[said - 4];
  }
  return (ssize_t)part;
}

ssize_t read_kind(int fd, int kind, void *into, size_t length) {
  (void)fd;
  if (kind == KIND_AGENT) return read_agent(into, length);
  if (kind != KIND_SIGNALS) return (ssize_t)take_into(into, length);
  memset(into, 0, length);
  return (ssize_t)length;
}

ssize_t written_to_kind(int fd, int kind, const void *bytes, size_t length) {
  (void)fd;
  uint32_t message[2];
  if (kind == KIND_FILE) return file_length += length, (ssize_t)length;
  if (kind != KIND_AGENT) return (ssize_t)length;
  CHECK(length == sizeof message);
  memcpy(message, bytes, length);
  CHECK(message[0] == reports); /* READY, STARTED, EXITED */
  CHECK(message[0] != 2 || message[1] <= 128 + 64 || message[1] <= 255);
  reports++;
  return (ssize_t)length;
}

int fake_memfd_create(const char *name, unsigned flags) {
  (void)name, (void)flags;
  return call_fails() ? -1 : new_fd(KIND_FILE, 0);
}

int fake_poll(struct pollfd *events, unsigned long count, int timeout) {
  CHECK(count == 2 && timeout == -1);
  if (++polls == POLLS_MAX) stop_subject(0);
  if (call_fails()) return -1;
  events[0].revents = take_u8() == 1 ? POLLHUP : 0;
  events[1].revents = events[0].revents == 0 ? POLLIN : 0;
  return 1;
}

int fake_execlp(const char *file, const char *first, const char *option, const char *end_of_options,
                const char *text, const char *last) {
  CHECK(head >> 31 == 0);
  CHECK(strcmp(file, "bash") == 0 && strcmp(first, "bash") == 0 && strcmp(option, "-c") == 0);
  CHECK(strcmp(end_of_options, "--") == 0);
  CHECK(last == NULL);
  if (file_length > 0)
    CHECK(strcmp(text, ". /proc/self/fd/9") == 0 && kind_of(9) == KIND_FILE);
  else
    CHECK(strlen(text) == strnlen((char *)command, command_length));
  if (!call_fails()) stop_subject(0);
  return -1;
}

int fake_execv(const char *path, char *const *arguments) {
  const char *at = (char *)command, *end = at + command_length;
  CHECK(head >> 31 == 1 && command_length > 0 && end[-1] == '\0');
  CHECK(strcmp(path, at) == 0);
  for (; at < end; at += strlen(at) + 1, arguments++) CHECK(strcmp(*arguments, at) == 0);
  CHECK(*arguments == NULL);
  if (!call_fails()) stop_subject(0);
  return -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  static char name[] = "init", directory[] = "/work";
  char *arguments[] = {name, directory, NULL};
  begin_input(bytes, length);
  begin_kernel(6);
  begin_processes();
  set_kind(AGENT_FD, KIND_AGENT);
  said = reports = file_length = 0;
  polls = 0;
  uint8_t how = take_u8();
  allow_failures(how & 1);
  head = how & 2 ? take_u32() : take_u8();
  if (how & 8) head |= 1u << 31;
  command_length = head & ~(1u << 31);
  size_t there = command_length > COMMAND_MAX ? 0 : command_length;
  memset(command, 'x', there);
  take_into(command, there < 64 ? there : 64);
  if (how & 16 && there > 0) command[there - 1] = '\0';
  run_subject(how & 4 ? 1 : 2, arguments);
  CHECK(reports <= 3 && (reports < 2 || command_length <= COMMAND_MAX));
  end_input();
  return 0;
}
