/* Processes: what runs, their streams, what was said of them. */
#ifndef BERTH_GUEST_PROCESS_H
#define BERTH_GUEST_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "loop.h"
#include "ring.h"
#include "wire.h"

struct process;

/* One of a process's outputs. Outlives its process when a child of it holds the other end. */
struct source {
  struct watch watch; /* First: the loop knows nothing else of it. */
  struct process *process;
  int stream;
  bool paused;   /* The ring is full of what the host has not acknowledged. */
  uint64_t owed; /* Once the shell has ended: what it may have put out and we have not read. */
};

struct process {
  uint8_t id[ID_BYTES];
  uint32_t index;
  pid_t pid;
  bool starting, terminal, ended, reported, by_signal;
  uint8_t status;
  uint16_t columns, rows;
  uint32_t start_request; /* 0: nobody waits for its answer. */
  uint64_t drain_until_ms;

  struct ring ring;
  struct source *outputs[2];
  bool kept;      /* Its output waits for the host: nothing unacknowledged is dropped. */
  bool sending;   /* This host follows it. */
  uint64_t acked; /* By the host, and what is sent beyond it. */
  uint64_t sent;
  bool exit_due, taken_due;

  struct watch input;
  uint8_t *stdin_bytes; /* Received, not taken; LIMIT_INPUT_WINDOW when there. */
  size_t stdin_from, stdin_length;
  uint64_t stdin_received;
  bool stdin_open, close_stdin_due;

  struct watch failure; /* Closed by exec; before that, what went wrong. */
};

struct process_spec {
  uint8_t id[ID_BYTES];
  uint8_t flags;
  uint16_t columns, rows;
  const char *command; /* Texts end with NUL. */
  size_t command_length;
  const char *environment; /* NAME=value, each ended by NUL. */
  size_t environment_length;
  const char *directory;
};

struct process *find_process(const uint8_t *id);
/* Pages of the table: the processes at `*index` and after it, NULL at the end. */
struct process *next_process(uint32_t *index);
uint32_t processes_count(void);

/* Answers the request itself, now or when the shell was executed. */
void start_process(const struct process_spec *spec, uint32_t request);
void process_stdin(struct process *process, uint64_t offset, const uint8_t *bytes, size_t length);
/* False when bytes before the offset are missing. */
bool process_close_stdin(struct process *process, uint64_t offset);
/* 0, or an error number. */
int process_resize(struct process *process, uint16_t columns, uint16_t rows);
int process_signal(struct process *process, int number);
/* Where the output begins that will be sent. */
uint64_t process_follow(struct process *process, uint64_t offset);
void process_unfollow(struct process *process);
void process_ack(struct process *process, uint64_t offset);
void forget_process(struct process *process);

/* Every end was said to the host, as far as there is one. */
bool processes_have_ended(void);
void process_reaped(pid_t pid, int status);
void processes_forget_host(void);
/* Puts the next thing to say into the frame: an end, input that was taken, output. */
bool processes_compose(struct writer *writer);
/* What is due by now, and when to come again. */
uint64_t processes_tend(void);

#endif
