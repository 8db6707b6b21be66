/* Pages of a directory with any names in any order, against a list that is sorted whole. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <node_api.h>
#include <string.h>
#include <sys/stat.h>

#include "../../../../agent/native/addon.h"
#include "../fuzz.h"
#include "../kernel.h"

enum { VALUES_MAX = 4096, NAMES_MAX = 128, NAME_MAX_BYTES = 255 };

/* As much of Node as the subject needs. */
struct napi_value__ {
  const void *bytes;
  size_t length;
  napi_value name, is_directory, after, entries;
};

static struct napi_value__ values[VALUES_MAX];
static uint32_t value_count, limit;
static napi_value page[NAMES_MAX + 1], arguments[6];
static size_t page_length;
static napi_callback list_directory;

/* What the directory has, by key: a directory's name ends with a slash. */
static struct key {
  char bytes[NAME_MAX_BYTES + 2];
  size_t length;
} keys[NAMES_MAX];
static size_t key_count;

static napi_value new_value(const void *bytes, size_t length) {
  CHECK(value_count < VALUES_MAX);
  values[value_count] = (struct napi_value__){.bytes = bytes, .length = length};
  return &values[value_count++];
}

#define CREATES(name, ...) napi_status name(napi_env env, ##__VA_ARGS__, napi_value *result)
CREATES(napi_create_array) { return *result = new_value(NULL, 0), napi_ok; }
CREATES(napi_create_object) { return *result = new_value(NULL, 0), napi_ok; }
CREATES(napi_create_array_with_length, size_t n) { return *result = new_value(NULL, n), napi_ok; }
CREATES(napi_create_int64, int64_t value) { return *result = new_value(NULL, (size_t)value), napi_ok; }
CREATES(napi_create_bigint_int64, int64_t n) { return *result = new_value(NULL, (size_t)n), napi_ok; }
CREATES(napi_create_bigint_uint64, uint64_t n) { return *result = new_value(NULL, n), napi_ok; }
CREATES(napi_get_boolean, bool value) { return *result = new_value(NULL, value), napi_ok; }
CREATES(napi_create_string_utf8, const char *text, size_t length) {
  CHECK_READABLE(text, length);
  return *result = new_value(text, length), napi_ok;
}
napi_status napi_create_buffer_copy(napi_env env, size_t length, const void *bytes, void **copy,
                                    napi_value *result) {
  CHECK_READABLE(bytes, length);
  return *result = new_value(bytes, length), napi_ok;
}
napi_status napi_set_named_property(napi_env env, napi_value object, const char *name,
                                    napi_value value) {
  if (strcmp(name, "name") == 0) object->name = value;
  if (strcmp(name, "isDirectory") == 0) object->is_directory = value;
  if (strcmp(name, "after") == 0) object->after = value;
  if (strcmp(name, "entries") == 0) object->entries = value;
  return napi_ok;
}
napi_status napi_set_element(napi_env env, napi_value array, uint32_t index, napi_value value) {
  if (value->name == NULL) return napi_ok;
  CHECK(index == page_length && index < limit);
  page[page_length++] = value;
  return napi_ok;
}
napi_status napi_is_buffer(napi_env env, napi_value value, bool *result) {
  return *result = true, napi_ok;
}
napi_status napi_get_buffer_info(napi_env env, napi_value value, void **bytes, size_t *length) {
  *bytes = value->length == 0 ? NULL : (void *)(uintptr_t)value->bytes;
  return *length = value->length, napi_ok;
}
napi_status napi_get_value_uint32(napi_env env, napi_value value, uint32_t *into) {
  return *into = (uint32_t)value->length, napi_ok;
}
napi_status napi_get_cb_info(napi_env env, napi_callback_info info, size_t *count, napi_value *into,
                             napi_value *self, void **data) {
  memcpy(into, arguments, sizeof arguments);
  return *count = 6, napi_ok;
}
napi_status napi_define_properties(napi_env env, napi_value exports, size_t count,
                                   const napi_property_descriptor *properties) {
  CHECK(count == 1);
  return list_directory = properties[0].method, napi_ok;
}

char *fake_strdup(const char *text);
void fake_free(void *block);

char *copy_text(napi_env env, napi_value value) { return fake_strdup(value->bytes); }
napi_value refuse_task(napi_env env, struct task *task) {
  if (task != NULL) task->release(task), fake_free(task);
  return NULL;
}
napi_value start_task(napi_env env, struct task *task, const char *call, napi_value kept) {
  int error = task->run(task);
  napi_value result = error == 0 ? task->result(env, task) : NULL;
  if (result != NULL && result->after != NULL) {
    static char after[NAME_MAX_BYTES + 2]; /* It outlives its listing. */
    memcpy(after, result->after->bytes, result->after->length);
    result->after->bytes = after;
  }
  static char names[NAMES_MAX + 1][NAME_MAX_BYTES + 2];
  for (size_t index = 0; index < page_length; index++) {
    napi_value name = page[index]->name;
    memcpy(names[index], name->bytes, name->length);
    name->bytes = names[index];
  }
  task->release(task);
  fake_free(task);
  return result;
}
int open_beneath(const char *directory, const char *path, int flags) {
  CHECK(strlen(directory) + strlen(path) < 8192);
  return call_fails() ? -1 : new_fd(KIND_PLAIN, 0);
}

/* Whatever is asked for is a plain file; all else the names say. */
int fake_fstat(int fd, struct stat *status) {
  kind_of(fd);
  memset(status, 0, sizeof *status);
  status->st_mode = S_IFREG;
  return call_fails() ? -1 : 0;
}
int fake_fstatat(int directory, const char *name, struct stat *status, int flags) {
  CHECK(strlen(name) <= NAME_MAX_BYTES + 1);
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
DIR *fake_opendir(const char *path) { return call_fails() ? NULL : (DIR *)&entry; }
int fake_dirfd(DIR *directory) { return 0; }
int fake_closedir(DIR *directory) { return (void)directory, 0; }
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
    if (same + length > NAME_MAX_BYTES) length = NAME_MAX_BYTES - same;
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
  static const uint8_t table[][4] = {{0x01, 0x7f, 0, 0}, {0xc2, 0xdf, 0x80, 0xbf}, {0xe0, 0xe0, 0xa0, 0xbf},
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

static bool is_wanted(const struct key *key, napi_value prefix, napi_value after) {
  bool is_directory = key->bytes[key->length - 1] == '/';
  size_t name = key->length - is_directory;
  if (name < prefix->length || memcmp(key->bytes, prefix->bytes, prefix->length) != 0) return false;
  if (name <= 2 && memcmp(key->bytes, "..", name) == 0) return false;
  if (!is_text(key->bytes, name)) return false;
  bool leads = is_directory && key->length < after->length &&
               memcmp(key->bytes, after->bytes, key->length) == 0;
  return leads || order(key->bytes, key->length, after->bytes, after->length) > 0;
}

static int compare_keys(const void *a, const void *b) {
  const struct key *left = a, *right = b;
  return order(left->bytes, left->length, right->bytes, right->length);
}

static void check_page(napi_value result, napi_value prefix, napi_value after) {
  size_t wanted = 0;
  for (size_t index = 0; index < key_count; index++)
    if (is_wanted(&keys[index], prefix, after)) keys[wanted++] = keys[index];
  qsort(keys, wanted, sizeof *keys, compare_keys);
  CHECK(page_length == (wanted < limit ? wanted : limit));
  for (size_t index = 0; index < page_length; index++) {
    bool is_directory = keys[index].bytes[keys[index].length - 1] == '/';
    CHECK(page[index]->name->length == keys[index].length - is_directory);
    CHECK(memcmp(page[index]->name->bytes, keys[index].bytes, page[index]->name->length) == 0);
    CHECK((page[index]->is_directory->length == 1) == is_directory);
  }
  CHECK((result->after != NULL) == (wanted > limit));
  if (result->after == NULL) return;
  const struct key *last = &keys[limit - 1];
  CHECK(order(result->after->bytes, result->after->length, last->bytes, last->length) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  char prefix[8], after[300];
  begin_input(bytes, length);
  begin_kernel(3);
  value_count = 0;
  page_length = 0;
  define_listing_functions(NULL, NULL);
  uint8_t how = take_u8();
  allow_failures(how & 1);
  limit = 1 + take_up_to(20);
  size_t prefix_length = take_into(prefix, how >> 1 & 3), after_length = take_u8();
  after_length = how & 8 ? take_into(after, after_length) : 0;
  arguments[0] = new_value("/root", 5);
  arguments[1] = new_value(how & 16 ? "" : "some/where", 0);
  arguments[2] = new_value(prefix, prefix_length);
  arguments[3] = new_value(after, after_length);
  arguments[4] = new_value(NULL, limit);
  arguments[5] = new_value("user.record", 11);
  take_names();
  napi_value result = list_directory(NULL, NULL);
  if ((how & 1) == 0) CHECK(result != NULL);
  if ((how & 1) == 0) check_page(result, arguments[2], arguments[3]);
  CHECK(open_fds() == 3);
  end_input_without_leaks();
  return 0;
}
