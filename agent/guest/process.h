/* Processes, from their start until the host forgets them, and what the host is told of them. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "loop.h"
#include "spawn.h"
#include "streams.h"
#include "wire.h"

struct process {
  uint8_t id[ID_BYTES];
  uint32_t index; /* In the table. */
  pid_t pid;
  bool starting, terminal;
  bool session;   /* For a process session: it is kept for a while after its end, then evicted. */
  bool on_files;  /* The process works on files, and ends with its host. */
  bool killed;    /* The host killed it while it ran. */
  bool timed_out; /* The process exceeded its time limit. */
  bool ended;     /* The shell was reaped; its output may not be drained yet. */
  bool reported;  /* The end may be told: the output is drained. */
  bool by_signal; /* `status` is the number of a signal, not an exit code. */
  bool exit_due;  /* The present host has not been told of the end. */
  uint8_t status;
  uint16_t columns, rows;
  uint32_t start_request; /* 0 when nobody waits for the answer. */
  uint64_t ended_at_ms;   /* By `now_ms`. */
  uint64_t timeout_at_ms; /* When its time is up; 0: never. */
  struct streams streams;
  struct watch failure; /* Closed by exec; before that it reports what went wrong. */
};

struct process *find_process(const uint8_t *id);
/* Iterates over the table: the first process at `*index` or after it, NULL at the end. */
struct process *next_process(uint32_t *index);
uint32_t processes_count(void);

/* Answers the request itself, at once or when the shell was executed. */
void start_process(const struct process_spec *spec, uint32_t request);
/* 0, or an error number. */
int process_resize(struct process *process, uint16_t columns, uint16_t rows);
int process_signal(struct process *process, int number);
/* Ends it with SIGKILL, and has its record tell so. 0, or an error number. */
int process_kill(struct process *process);
void forget_process(struct process *process);
/* Frees what is kept of the session process that ended first; false when there is none to free. */
bool evict_process(void);
/* Keeps ended session processes for this long, in milliseconds. */
void set_retention(uint64_t ms);

/* How it ended: FLAG_SIGNALLED, FLAG_KILLED, FLAG_TIMED_OUT; 0 while it runs. */
uint8_t process_end_flags(const struct process *process);

/* How long ago it ended, in milliseconds; 0 while it runs. */
uint64_t process_since_end_ms(const struct process *process);
/* True when every process has ended and the present host was told of it. */
bool processes_have_ended(void);
void process_reaped(pid_t pid, int status);
/* A new host has connected: it follows nothing yet, and waits for no answer. */
void processes_forget_host(void);
/*
 * No host is connected: no process of a session waits for one. Others do, because their host keeps
 * their output and is to get all of it.
 */
void processes_release(void);
/* Composes the next frame to send (an end, input taken, or output); false when there is none. */
bool processes_compose(struct writer *writer);
/* Does what is due by now; returns when to be called again. */
uint64_t processes_tick(void);
