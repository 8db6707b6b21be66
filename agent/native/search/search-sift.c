/*
 * Reading a file and looking for a text takes less than giving it to a process by name, and most
 * files of most searches do not have the text. Those that have it, and all that need the engine's
 * judgement, are kept: files that cannot be read or are none, and UTF-16 with a byte order mark,
 * which rg converts. Large files are kept as well: the engine would read them as fast, and no
 * thread is busy with a few of them while others have nothing to do.
 *
 * When the text is all of the pattern, a text file that was read as a whole needs no engine: each
 * of its lines with the text matches.
 */
#define _GNU_SOURCE
#include "search-sift.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "search-frames.h"
#include "search-lines.h"

enum { SIFT_BYTES = 64 * 1024, FILE_BYTES_MAX = 1 << 20 };

static bool is_utf16(const unsigned char *bytes, size_t length) {
  return length >= 2 &&
         ((bytes[0] == 0xff && bytes[1] == 0xfe) || (bytes[0] == 0xfe && bytes[1] == 0xff));
}

/*
 * Whether the engine might find something in an open file; it might, too, when the file grows
 * meanwhile. Holds the matches of a file of which they are known.
 */
static bool may_match(struct sifter *sifter, int fd, const char *path, size_t file_length) {
  const struct required *required = sifter->required;
  size_t overlap = required->length - 1, held = 0, total = 0;
  ssize_t count;
  bool is_start = true;
  while ((count = read(fd, sifter->bytes + held, SIFT_BYTES - held)) > 0) {
    size_t length = held + (size_t)count;
    /* The reading could have brought more, so this is where the file ends. */
    bool is_whole = total == 0 && length == file_length && length < SIFT_BYTES;
    if (is_start && is_utf16(sifter->bytes, length)) return true;
    const unsigned char *found = required_find(required, sifter->bytes, length);
    if (found != NULL) {
      /* Without "./". */
      struct whole_file file = {path + 2, sifter->bytes, found, length};
      return !is_whole || !required->is_pattern ||
             !hold_lines(&sifter->held, required, &file, sifter->results_max);
    }
    if (is_whole) return false;
    if ((total += (size_t)count) > FILE_BYTES_MAX) return true;
    /* A first read of one byte says nothing about the mark yet. */
    is_start = is_start && length < 2;
    held = length < overlap ? length : overlap;
    memmove(sifter->bytes, sifter->bytes + length - held, held);
  }
  return count < 0;
}

static bool needs_engine(struct sifter *sifter, const char *path) {
  struct stat found;
  int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return true;
  bool is_small =
      fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_size <= FILE_BYTES_MAX;
  bool needs = !is_small || may_match(sifter, fd, path, (size_t)found.st_size);
  close(fd);
  return needs;
}

static void sift_batch(struct sifter *sifter) {
  for (size_t i = 0; i < sifter->batch.count; i++)
    sifter->kept[i] = needs_engine(sifter, sifter->batch.paths[i]);
}

static void wait_for(sem_t *semaphore) {
  while (sem_wait(semaphore) != 0)
    ;
}

/* Runs until the program ends. */
static void *sift(void *given) {
  struct sifter *sifter = given;
  for (;;) {
    wait_for(&sifter->begun);
    sift_batch(sifter);
    sem_post(&sifter->done);
    if (write(sifter->end, "", 1) != 1) _exit(1);
  }
}

static bool start_thread(struct sifter *sifter) {
  pthread_t thread;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  sem_init(&sifter->begun, 0, 0);
  sem_init(&sifter->done, 0, 0);
  sifter->bytes = allocate(sifter->bytes, SIFT_BYTES);
  sifter->output = ends[0];
  sifter->end = ends[1];
  sifter->has_thread = pthread_create(&thread, NULL, sift, sifter) == 0;
  if (sifter->has_thread) return true;
  close(ends[0]);
  close(ends[1]);
  return false;
}

bool sifter_start(struct sifter *sifter, const struct required *required, uint64_t results_max,
                  struct batch batch) {
  if (!sifter->has_thread && !start_thread(sifter)) return false;
  sifter->kept = allocate(sifter->kept, batch.count * sizeof *sifter->kept);
  sifter->required = required;
  sifter->results_max = results_max;
  sifter->batch = batch;
  sifter->begun_at = now_us();
  sifter->is_busy = true;
  sem_post(&sifter->begun);
  return true;
}

void sifter_end(struct sifter *sifter) {
  char byte;
  wait_for(&sifter->done);
  if (read(sifter->output, &byte, 1) != 1) _exit(1);
  sifter->is_busy = false;
}
