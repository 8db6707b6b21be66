/*
 * The guard with a table of mounts that says anything: it unmounts what lies below, nothing else.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "../fuzz.h"
#include "../kernel.h"

#define DIRECTORY "/disks"

ssize_t read_kind(int fd, int kind, void *into, size_t length) {
  (void)fd, (void)kind, (void)into, (void)length;
  return 0; /* The agent is gone. */
}

enum { MOUNTS_MAX = 256, PATH_BYTES = 4096 };

static char expected[MOUNTS_MAX][PATH_BYTES];
static size_t expected_count;

static bool is_octal(char digit) { return digit >= '0' && digit <= '7'; }

/* proc_pid_mountinfo(5): a backslash and three digits stand for one character. */
static void expect(const char *field, size_t length) {
  char *to = expected[expected_count];
  for (size_t at = 0; at < length; at++) {
    const char *code = field + at + 1;
    bool is_escape = field[at] == '\\' && length - at > 3 && is_octal(code[0]) &&
                     is_octal(code[1]) && is_octal(code[2]);
    *to++ = is_escape ? (char)((code[0] - '0') << 6 | (code[1] - '0') << 3 | (code[2] - '0'))
                      : field[at];
    if (is_escape) at += 3;
  }
  *to = '\0';
  expected_count++;
}

static bool is_expected(const char *path) {
  for (size_t index = 0; index < expected_count; index++)
    if (strcmp(expected[index], path) == 0) return true;
  return false;
}

bool fake_join_group(const char *group) { return (void)group, true; }
bool fake_kill_helpers(const char *group) { return (void)group, call_fails(); }
void fake_reap_unmounters(void) {}

void fake_begin_unmounting(const char *path) {
  CHECK(strncmp(path, DIRECTORY "/", strlen(DIRECTORY "/")) == 0);
  CHECK(is_expected(path));
}

void (*fake_signal(int number, void (*handler)(int)))(int) { return (void)number, handler; }

/* Lines of mounts; the paths come from the input, without what the kernel never leaves as it is. */
FILE *fake_fopen(const char *path, const char *mode) {
  static char table[32768];
  size_t length = 0;
  CHECK(strcmp(path, "/proc/self/mountinfo") == 0);
  (void)mode;
  if (call_fails()) return NULL;
  while (!input_is_empty() && length < sizeof table - 5000 && expected_count < MOUNTS_MAX) {
    uint8_t how = take_u8();
    length += (size_t)sprintf(table + length, "36 35 98:0 / ");
    size_t start = length;
    if (how & 1) length += (size_t)sprintf(table + length, DIRECTORY "/");
    size_t fill = how & 2 ? 4095 - (length - start) - (how >> 2) : 0;
    memset(table + length, 'x', fill);
    length += fill;
    for (size_t left = how >> 2; left > 0; left--) {
      uint8_t byte = take_u8();
      table[length++] = byte <= ' ' ? '\\' : (char)byte;
    }
    expect(table + start, length - start);
    length += (size_t)sprintf(table + length, " rw - ext4 /dev/loop0 rw\n");
  }
  return fmemopen(table, length == 0 ? 1 : length, "r");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  static char name[] = "guard", group[] = "/group", directory[] = DIRECTORY;
  char *arguments[] = {name, group, directory, NULL};
  begin_input(bytes, length);
  begin_kernel(3);
  expected_count = 0;
  allow_failures(take_u8() & 1);
  run_subject(3, arguments);
  end_input();
  return 0;
}
