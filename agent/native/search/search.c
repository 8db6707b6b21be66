/*
 * Searches the tree below the working directory with several rg or grep processes at once. Runs in
 * a container, confined like any command; what it writes is hostile input to the agent all the
 * same.
 *
 * Usage: search <tools> <recursive 0|1> <workers> <results max> <time left in ms>
 *               <ignore case 0|1> <trial 0|1> <plain 0|1> <pattern for rg> <pattern for grep>
 *               <text>
 *   tools: a directory with rg, grep, the dynamic loader ld.so, their libraries in lib/, and the
 *          locale C.UTF-8 in locale/
 *   trial: whether an engine may refuse the pattern, so that it is tried first
 *   plain: whether the text is all of the pattern, so that lines with it need no engine
 *   patterns: both mean the same; with an empty one for rg, or one that rg refuses, grep searches
 *   text: each match contains it; files without it are left out. Empty: there is none
 *
 * The tree is listed breadth-first while workers search what was found; regular files only, and no
 * link is followed. Each worker is one process with a batch of files: few at first, so that results
 * come soon, then as many as keep it busy a while, and fewer at the end, so that all end together.
 * Threads that sift files by the text count as workers.
 *
 * stdout: frames of u8 kind, u32 length, payload; all numbers little-endian.
 *   1 match       u64 line, u32 length of the path, u8 whether the text was cut, path, text
 *   2 statistics  u64 files searched, then in microseconds u64 listing, u64 matching, u64 CPU time;
 *                 ten times a second and at the end
 *   3 problem     text of at most 1 KiB: the first reason why the search is incomplete
 *   4 end         u8 0 completed, 1 incomplete, 2 results max, 3 deadline, 4 cannot be listed,
 *                 5 the pattern is not valid; the problem says why
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "search-frames.h"
#include "search-listing.h"
#include "search-supply.h"
#include "search-worker.h"

enum { WORKERS_MAX = SIFTERS_MAX, STATISTICS_EVERY_US = 100000 };

static struct {
  struct tools tools;
  struct supply supply;
  struct worker workers[WORKERS_MAX];
  int worker_count, running;
  bool probed; /* The engine accepts the pattern. */
  struct results results;
  int errors; /* The read end of the pipe that is stderr of every process. */
  uint64_t files_searched, matching_from, matching_to, statistics_at;
} search;

static void write_statistics(void) {
  struct rusage own, children;
  uint64_t to = search.running > 0 ? now_us() : search.matching_to;
  getrusage(RUSAGE_SELF, &own);
  getrusage(RUSAGE_CHILDREN, &children);
  const struct timeval *parts[] = {&own.ru_utime, &own.ru_stime, &children.ru_utime,
                                   &children.ru_stime};
  uint64_t figures[4] = {search.files_searched + search.supply.left_out,
                         search.supply.listing.spent_us,
                         search.matching_from == 0 ? 0 : to - search.matching_from, 0};
  for (size_t i = 0; i < 4; i++)
    figures[3] += (uint64_t)parts[i]->tv_sec * 1000000 + (uint64_t)parts[i]->tv_usec;
  write_frame(STATISTICS, figures, sizeof figures);
  search.statistics_at = now_us() + STATISTICS_EVERY_US;
}

static void read_errors(void) {
  char text[4096];
  ssize_t length;
  while ((length = read(search.errors, text, sizeof text)) > 0)
    note_problem_bytes(text, (size_t)length);
}

static _Noreturn void finish(enum reason reason) {
  for (int i = 0; i < search.worker_count; i++) {
    struct worker *worker = &search.workers[i];
    if (worker->pid == 0) continue;
    worker_end(worker, true);
    if (search.probed) search.files_searched += worker->current + (worker->seen ? 1 : 0);
  }
  if (search.running > 0) search.matching_to = now_us();
  search.running = 0;
  read_errors();
  char code = (char)(reason == COMPLETED && has_problem() ? INCOMPLETE : reason);
  write_problem();
  write_statistics();
  write_frame(END, &code, 1);
  _exit(0);
}

/*
 * When a worker dies, for example because it ran out of memory, only the file that killed it is
 * lost: the unsearched rest is halved until that file is alone in its batch.
 */
static void divide(struct batch rest, int signal_number) {
  if (rest.count == 1) {
    const char *name = strsignal(signal_number);
    note_problem("%s: cannot be searched: the process was ended (%s)", rest.paths[0] + 2, name);
    free(rest.paths[0]);
  } else if (rest.count > 1) {
    supply_retry(&search.supply, rest.paths, rest.count / 2);
    supply_retry(&search.supply, rest.paths + rest.count / 2, rest.count - rest.count / 2);
  }
}

/* Ends the try of the pattern. What rg refuses, for example for its size, is tried with grep. */
static void end_probe(struct worker *worker, int status) {
  free(worker->batch.paths);
  worker_clear(worker);
  read_errors();
  if (!WIFSIGNALED(status) && WEXITSTATUS(status) <= 1) {
    search.probed = true;
  } else if (search.tools.rg_pattern != NULL) {
    forget_problem();
    search.tools.rg_pattern = NULL;
    search.supply.text_only = true;
  } else {
    if (WIFSIGNALED(status))
      note_problem("it needs more memory than a search may use (%s)", strsignal(WTERMSIG(status)));
    finish(REFUSED);
  }
}

static void end_worker(struct worker *worker) {
  int status = worker_end(worker, false);
  size_t searched = worker->batch.count;
  bool failed = WIFSIGNALED(status);
  search.running--;
  search.matching_to = now_us();
  if (!search.probed) {
    end_probe(worker, status);
    return;
  }
  if (failed) {
    struct batch rest = worker_rest(worker);
    searched -= rest.count;
    divide(rest, WTERMSIG(status));
  } else {
    worker_keep(worker, &search.results);
    pace_learn(&search.supply.pace, searched, now_us() - worker->begun_at);
    if (worker->length > 0)
      note_problem("%s ended in the middle of a line", engine_name(&search.tools));
    if (WEXITSTATUS(status) > 1) read_errors();
    if (WEXITSTATUS(status) > 1 && !has_problem())
      note_problem("%s failed", engine_name(&search.tools));
  }
  for (size_t i = 0; i < searched; i++) free(worker->batch.paths[i]);
  free(worker->batch.paths);
  search.files_searched += searched;
  worker_clear(worker);
}

static void start_worker(struct worker *worker, struct batch batch) {
  if (!worker_start(worker, &search.tools, batch)) {
    note_problem("%s cannot be started: %s", engine_name(&search.tools), strerror(errno));
    finish(INCOMPLETE);
  }
  if (search.matching_from == 0) search.matching_from = now_us();
  search.running++;
}

static struct worker *free_worker(void) {
  struct worker *worker = search.workers;
  while (worker->pid != 0) worker++;
  return worker;
}

static bool start_sifter(void) {
  bool is_started;
  if (!supply_sift(&search.supply, &is_started)) return false;
  if (is_started && search.matching_from == 0) search.matching_from = now_us();
  search.running += is_started;
  return true;
}

static void end_sifter(struct sifter *sifter) {
  supply_end_sifter(&search.supply, sifter, &search.results);
  search.running--;
  search.matching_to = now_us();
}

/* First tries the pattern on an empty file: a wrong one fails once, not for each batch. */
static void start_workers(void) {
  static char nothing[] = "/dev/null";
  static char *const paths[] = {nothing};
  if (!search.probed && search.workers[0].pid == 0)
    start_worker(&search.workers[0], copy_batch((char **)paths, 1));
  while (search.running < search.worker_count) {
    struct batch batch = {NULL, 0};
    if (search.probed) batch = supply_next(&search.supply);
    if (batch.count > 0)
      start_worker(free_worker(), batch);
    else if (!start_sifter())
      return;
  }
}

static void take_output(bool is_listing) {
  struct pollfd events[2 * WORKERS_MAX + 1];
  struct worker *workers[WORKERS_MAX];
  struct sifter *sifters[SIFTERS_MAX];
  nfds_t reading = 0, count = 0;
  for (int i = 0; i < search.worker_count; i++) {
    if (search.workers[i].pid == 0) continue;
    workers[reading] = &search.workers[i];
    events[reading++] = (struct pollfd){.fd = search.workers[i].output, .events = POLLIN};
  }
  for (int i = 0; i < search.worker_count; i++) {
    if (!search.supply.sieve.sifters[i].is_busy) continue;
    sifters[count] = &search.supply.sieve.sifters[i];
    events[reading + count++] =
        (struct pollfd){.fd = search.supply.sieve.sifters[i].output, .events = POLLIN};
  }
  count += reading;
  events[count] = (struct pollfd){.fd = search.errors, .events = POLLIN};
  uint64_t now = now_us();
  uint64_t until = search.statistics_at < search.supply.deadline_at ? search.statistics_at
                                                                    : search.supply.deadline_at;
  int wait_ms = is_listing || until <= now ? 0 : (int)((until - now) / 1000 + 1);
  if (poll(events, count + 1, wait_ms) <= 0) return;
  if (events[count].revents != 0) read_errors();
  for (nfds_t i = 0; i < reading; i++)
    if (events[i].revents != 0 && !worker_read(workers[i], &search.results)) end_worker(workers[i]);
  for (nfds_t i = reading; i < count; i++)
    if (events[i].revents != 0) end_sifter(sifters[i - reading]);
}

static _Noreturn void run(void) {
  for (;;) {
    start_workers();
    bool is_listing = supply_is_listing(&search.supply);
    if (search.running == 0 && search.probed && supply_is_empty(&search.supply)) finish(COMPLETED);
    if (is_listing) listing_step(&search.supply.listing);
    take_output(is_listing);
    if (search.results.count >= search.results.max) finish(MAX_RESULTS);
    uint64_t now = now_us();
    if (now >= search.supply.deadline_at) finish(DEADLINE);
    if (now >= search.statistics_at) write_statistics();
  }
}

static bool number(const char *text, unsigned long max, unsigned long *value) {
  char *end;
  *value = strtoul(text, &end, 10);
  return end != text && *end == '\0' && *value <= max;
}

int main(int argc, char **argv) {
  unsigned long recursive, workers, results, time_ms, ignores_case, trial, plain;
  int errors[2];
  if (argc != 12 || !number(argv[2], 1, &recursive) || !number(argv[3], WORKERS_MAX, &workers) ||
      !number(argv[4], 1000000, &results) || !number(argv[5], 3600000, &time_ms) ||
      !number(argv[6], 1, &ignores_case) || !number(argv[7], 1, &trial) ||
      !number(argv[8], 1, &plain) || workers == 0) {
    fprintf(stderr,
            "usage: search <tools> <recursive> <workers> <results> <ms> <ignore case> <trial> "
            "<plain> <pattern for rg> <pattern for grep> <text>\n");
    return 2;
  }
  if (pipe2(errors, O_CLOEXEC | O_NONBLOCK) != 0) return 1;
  /* A process blocks when its errors come faster than they are read. */
  fcntl(errors[1], F_SETFL, 0);
  signal(SIGPIPE, SIG_IGN);
  search.errors = errors[0];
  search.tools = (struct tools){.directory = argv[1],
                                .rg_pattern = *argv[9] == '\0' ? NULL : argv[9],
                                .grep_pattern = argv[10],
                                .ignores_case = ignores_case == 1,
                                .errors = errors[1]};
  search.probed = trial == 0;
  required_set(&search.supply.sieve.required, argv[11], plain == 1);
  search.supply.text_only = search.tools.rg_pattern == NULL;
  search.supply.worker_count = workers;
  search.worker_count = (int)workers;
  search.results.max = search.supply.sieve.results_max = results;
  search.statistics_at = now_us() + STATISTICS_EVERY_US;
  search.supply.deadline_at = now_us() + time_ms * 1000;
  if (!listing_start(&search.supply.listing, recursive == 1)) {
    note_problem("the directory cannot be opened: %s", strerror(errno));
    finish(LIST_FAILED);
  }
  run();
}
