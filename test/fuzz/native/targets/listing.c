/* Pages of a directory with any names in any order, against a list that is sorted whole. */
#define _GNU_SOURCE
#include "../../../../agent/native/addon/listing.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "../fuzz.h"
#include "../kernel.h"

enum { NAMES_MAX = 128, SLICES_MAX = 10000 };

static bool is_open;

#define CHECK_OPEN(directory) ({ CHECK(is_open && (directory) == (DIR *)&entry); })

/* The directory's entries, by key: a directory's name ends with a slash. */
static struct key {
  char bytes[NAME_BYTES_MAX + 2];
  size_t length;
} keys[NAMES_MAX];
static size_t key_count;

int open_beneath(const char *directory, const char *path, int flags) {
  CHECK(strlen(directory) + strlen(path) < 8192);
  return call_fails() ? -1 : new_fd(KIND_PLAIN, 0);
}

/* Every opened name is a plain file; all else the names say. */
int fake_fstat(int fd, struct stat *status) {
  kind_of(fd);
  memset(status, 0, sizeof *status);
  status->st_mode = S_IFREG;
  return call_fails() ? -1 : 0;
}
int fake_fstatat(int directory, const char *name, struct stat *status, int flags) {
  CHECK(strlen(name) <= NAME_BYTES_MAX + 1);
  return fake_fstat(directory, status);
}
ssize_t fake_getxattr(const char *path, const char *name, void *value, size_t size) {
  size_t length = take_answer() * 17u;
  if (call_fails() || length > size) return -1;
  CHECK(strlen(path) > 0 && strlen(name) > 0);
  return memset(value, 7, length), (ssize_t)length;
}
ssize_t fake_lgetxattr(const char *path, const char *name, void *value, size_t size) {
  return fake_getxattr(path, name, value, size);
}

static struct dirent entry;
static size_t next_key;
DIR *fake_opendir(const char *path) {
  CHECK(!is_open && strlen(path) > 0);
  if (call_fails()) return NULL;
  return is_open = true, (DIR *)&entry;
}
int fake_dirfd(DIR *directory) { return CHECK_OPEN(directory), 0; }
int fake_closedir(DIR *directory) { return CHECK_OPEN(directory), is_open = false, 0; }
struct dirent *fake_readdir(DIR *directory) {
  if (next_key == key_count || call_fails()) return NULL;
  const struct key *key = &keys[next_key++];
  bool is_directory = key->bytes[key->length - 1] == '/';
  memset(&entry, 0x7e, sizeof entry);
  memcpy(entry.d_name, key->bytes, key->length);
  entry.d_name[key->length - is_directory] = '\0';
  entry.d_type = is_directory ? DT_DIR : key->length % 3 == 0 ? DT_LNK : DT_REG;
  return &entry;
}

static void take_names(void) {
  key_count = 0;
  for (uint8_t how; !input_is_empty() && key_count < NAMES_MAX; key_count++) {
    struct key *key = &keys[key_count];
    how = take_u8();
    /* Long ones, and such that begin as the last one does. */
    size_t same = how & 1 && key_count > 0 ? keys[key_count - 1].length / 2 : 0;
    if (same > 0) memcpy(key->bytes, keys[key_count - 1].bytes, same);
    size_t length = how & 2 ? take_u8() : how >> 4;
    if (same + length > NAME_BYTES_MAX) length = NAME_BYTES_MAX - same;
    take_into(key->bytes + same, length);
    length += same;
    for (size_t index = 0; index < length; index++)
      if (key->bytes[index] == '\0' || key->bytes[index] == '/') key->bytes[index] = 'a';
    if (length == 0) key->bytes[length++] = 'b';
    if (how & 4) key->bytes[length++] = '/';
    key->length = length;
  }
  next_key = 0;
}

static int order(const char *a, size_t a_length, const char *b, size_t b_length) {
  int result = memcmp(a, b, a_length < b_length ? a_length : b_length);
  return result != 0 ? result : a_length < b_length ? -1 : a_length > b_length;
}

/* RFC 3629, by its table of well-formed sequences. */
static bool is_text(const char *bytes, size_t length) {
  static const uint8_t table[][4] = {
      {0x01, 0x7f, 0, 0},       {0xc2, 0xdf, 0x80, 0xbf}, {0xe0, 0xe0, 0xa0, 0xbf},
      {0xe1, 0xec, 0x80, 0xbf}, {0xed, 0xed, 0x80, 0x9f}, {0xee, 0xef, 0x80, 0xbf},
      {0xf0, 0xf0, 0x90, 0xbf}, {0xf1, 0xf3, 0x80, 0xbf}, {0xf4, 0xf4, 0x80, 0x8f}};
  for (size_t at = 0; at < length;) {
    uint8_t first = (uint8_t)bytes[at++];
    size_t row = 0, more = first < 0x80 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
    while (row < 9 && (first < table[row][0] || first > table[row][1])) row++;
    if (row == 9 || more > length - at) return false;
    for (size_t index = 0; index < more; index++, at++) {
      uint8_t byte = (uint8_t)bytes[at];
      uint8_t least = index == 0 ? table[row][2] : 0x80, most = index == 0 ? table[row][3] : 0xbf;
      if (byte < least || byte > most) return false;
    }
  }
  return true;
}

static bool is_wanted(const struct key *key, const struct listing *of) {
  bool is_directory = key->bytes[key->length - 1] == '/';
  size_t name = key->length - is_directory;
  if (name < of->prefix_bytes || memcmp(key->bytes, of->prefix, of->prefix_bytes) != 0)
    return false;
  if (name <= 2 && memcmp(key->bytes, "..", name) == 0) return false;
  if (!is_text(key->bytes, name)) return false;
  bool leads = is_directory && key->length < of->after_bytes &&
               memcmp(key->bytes, of->after, key->length) == 0;
  return leads || order(key->bytes, key->length, of->after, of->after_bytes) > 0;
}

static int compare_keys(const void *a, const void *b) {
  const struct key *left = a, *right = b;
  return order(left->bytes, left->length, right->bytes, right->length);
}

static void check_page(const struct listing *listing) {
  size_t wanted = 0;
  for (size_t index = 0; index < key_count; index++)
    if (is_wanted(&keys[index], listing)) keys[wanted++] = keys[index];
  qsort(keys, wanted, sizeof *keys, compare_keys);
  CHECK(listing->count == (wanted < listing->limit ? wanted : listing->limit));
  CHECK(listing->is_cut == (wanted > listing->limit));
  for (size_t index = 0; index < listing->count; index++) {
    const struct entry *found = listing->heap[index];
    CHECK(found->is_found &&
          found->is_directory == (keys[index].bytes[keys[index].length - 1] == '/'));
    CHECK(order(found->key, found->length, keys[index].bytes, keys[index].length) == 0);
  }
}

void *fake_calloc(size_t count, size_t size);
void *fake_malloc(size_t size);
char *fake_strdup(const char *text);

static struct listing *new_listing(uint8_t how) {
  struct listing *listing = fake_calloc(1, sizeof *listing);
  listing->root = fake_strdup("/root");
  listing->path = fake_strdup(how & 16 ? "" : "some/where");
  listing->attribute = fake_strdup("user.record");
  listing->limit = 1 + take_up_to(20);
  listing->prefix_bytes = how >> 1 & 3;
  listing->prefix = fake_malloc(listing->prefix_bytes + 1);
  take_into(listing->prefix, listing->prefix_bytes);
  listing->after_bytes = how & 8 ? take_u8() : 0;
  listing->after = fake_malloc(listing->after_bytes + 1);
  take_into(listing->after, listing->after_bytes);
  return listing;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  begin_input(bytes, length);
  begin_kernel(3);
  is_open = false;
  uint8_t how = take_u8();
  struct listing *listing = new_listing(how);
  take_names();
  allow_failures(how & 1);
  /* No time at all: each slice ends as soon as it may. */
  uint32_t milliseconds = how & 32 ? 0 : 1000;
  int error = 0;
  for (int slices = 0; error == 0 && !listing->is_done; slices++) {
    CHECK(slices < SLICES_MAX);
    error = advance_listing(listing, milliseconds);
    clock_us += 100;
  }
  if ((how & 1) == 0) CHECK(error == 0);
  if ((how & 1) == 0) check_page(listing);
  free_listing(listing);
  CHECK(open_fds() == 3 && !is_open);
  end_input_without_leaks();
  return 0;
}
