/*
 * Reading a file and looking for a text takes less than giving it to a process by name, and most
 * files of most searches do not have the text. Those that have it, and all that need the engine's
 * judgement, are kept: files that cannot be read or are none, and UTF-16 with a byte order mark,
 * which rg converts. Large files are kept as well: the engine would read them as fast, and no
 * thread is busy with a few of them while others have nothing to do.
 */
#define _GNU_SOURCE
#include "search-sift.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "search-frames.h"

enum { SIFT_BYTES = 64 * 1024, FILE_BYTES_MAX = 1 << 20, LANES = 16, STEP = 4 * LANES };

typedef unsigned char lanes __attribute__((vector_size(LANES)));

/* How common a byte is in text and code: a higher number is rarer. */
static int rarity(unsigned char byte) {
  static const char common[] = " etaoinsrlcdumhpfgybvkwxzjq_.,01()=\"-'/;:23456789";
  const char *at = byte == '\0' ? NULL : strchr(common, byte);
  return at == NULL ? INT_MAX : (int)(at - common);
}

void required_set(struct required *required, const char *text) {
  size_t length = strlen(text);
  if (length > REQUIRED_BYTES_MAX) length = REQUIRED_BYTES_MAX;
  *required = (struct required){(const unsigned char *)text, length < 2 ? 0 : length, 0, 1};
  for (size_t at = 1; at < required->length; at++)
    if (rarity(required->text[at]) > rarity(required->text[required->first])) required->first = at;
  required->second = required->first == 0 ? 1 : 0;
  for (size_t at = 0; at < required->length; at++)
    if (at != required->first &&
        rarity(required->text[at]) > rarity(required->text[required->second]))
      required->second = at;
}

static lanes load(const unsigned char *from) {
  lanes loaded;
  memcpy(&loaded, from, sizeof loaded);
  return loaded;
}

static lanes repeat(unsigned char byte) {
  lanes repeated;
  memset(&repeated, byte, sizeof repeated);
  return repeated;
}

static bool has_any(lanes of) {
  uint64_t halves[2];
  memcpy(halves, &of, sizeof halves);
  return (halves[0] | halves[1]) != 0;
}

/* The places from `at` on where both of the two rarest bytes are as in the text. */
static lanes candidates(const struct required *required, const unsigned char *at, lanes first,
                        lanes second) {
  return (lanes)(load(at + required->first) == first) &
         (lanes)(load(at + required->second) == second);
}

static bool is_at_one(const struct required *required, const unsigned char *at, lanes of) {
  if (!has_any(of)) return false;
  for (size_t lane = 0; lane < LANES; lane++)
    if (of[lane] != 0 && memcmp(at + lane, required->text, required->length) == 0) return true;
  return false;
}

/* Two to four times as fast as memmem(3) with words. */
bool required_is_in(const struct required *required, const unsigned char *bytes, size_t length) {
  const unsigned char *at = bytes, *end = bytes + length;
  lanes first = repeat(required->text[required->first]);
  lanes second = repeat(required->text[required->second]);
  for (; (size_t)(end - at) >= required->length + STEP; at += STEP) {
    lanes of[] = {
        candidates(required, at, first, second),
        candidates(required, at + LANES, first, second),
        candidates(required, at + (size_t)2 * LANES, first, second),
        candidates(required, at + (size_t)3 * LANES, first, second),
    };
    if (!has_any(of[0] | of[1] | of[2] | of[3])) continue;
    for (size_t part = 0; part < STEP / LANES; part++)
      if (is_at_one(required, at + part * LANES, of[part])) return true;
  }
  return memmem(at, (size_t)(end - at), required->text, required->length) != NULL;
}

static bool is_utf16(const unsigned char *bytes, size_t length) {
  return length >= 2 &&
         ((bytes[0] == 0xff && bytes[1] == 0xfe) || (bytes[0] == 0xfe && bytes[1] == 0xff));
}

static bool is_small_file(int fd) {
  struct stat found;
  return fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_size <= FILE_BYTES_MAX;
}

/* Whether the engine might find something in it; it might, too, when the file grows meanwhile. */
static bool may_match(const struct sifter *sifter, int fd) {
  size_t overlap = sifter->required->length - 1, held = 0, total = 0;
  ssize_t count;
  bool is_start = true;
  while ((count = read(fd, sifter->bytes + held, SIFT_BYTES - held)) > 0) {
    size_t length = held + (size_t)count;
    if (is_start && is_utf16(sifter->bytes, length)) return true;
    if (required_is_in(sifter->required, sifter->bytes, length)) return true;
    if ((total += (size_t)count) > FILE_BYTES_MAX) return true;
    /* A first read of one byte says nothing about the mark yet. */
    is_start = is_start && length < 2;
    held = length < overlap ? length : overlap;
    memmove(sifter->bytes, sifter->bytes + length - held, held);
  }
  return count < 0;
}

static bool is_kept(const struct sifter *sifter, const char *path) {
  int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return true;
  bool kept = !is_small_file(fd) || may_match(sifter, fd);
  close(fd);
  return kept;
}

static void *sift(void *given) {
  struct sifter *sifter = given;
  for (size_t i = 0; i < sifter->batch.count; i++)
    sifter->kept[i] = is_kept(sifter, sifter->batch.paths[i]);
  close(sifter->end);
  return NULL;
}

bool sifter_start(struct sifter *sifter, const struct required *required, struct batch batch) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  if (sifter->bytes == NULL) sifter->bytes = allocate(NULL, SIFT_BYTES);
  sifter->kept = allocate(sifter->kept, batch.count * sizeof *sifter->kept);
  sifter->required = required;
  sifter->batch = batch;
  sifter->begun_at = now_us();
  sifter->output = ends[0];
  sifter->end = ends[1];
  sifter->is_busy = pthread_create(&sifter->thread, NULL, sift, sifter) == 0;
  if (sifter->is_busy) return true;
  close(ends[0]);
  close(ends[1]);
  return false;
}

void sifter_end(struct sifter *sifter) {
  pthread_join(sifter->thread, NULL);
  close(sifter->output);
  sifter->is_busy = false;
}
