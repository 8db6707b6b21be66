/* Runs a target once on each file of its corpus: `main` in a build without libFuzzer. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void replay(const char *directory, const char *name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  FILE *file = fopen(path, "re");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
    perror(path);
    exit(2);
  }
  size_t length = (size_t)ftell(file);
  uint8_t *bytes = malloc(length == 0 ? 1 : length); /* Exact, so that reading beyond it shows. */
  rewind(file);
  if (bytes == NULL || fread(bytes, 1, length, file) != length) {
    perror(path);
    exit(2);
  }
  fclose(file);
  fprintf(stderr, "%s\n", path); /* The last one named is the one that failed. */
  LLVMFuzzerTestOneInput(bytes, length);
  free(bytes);
}

int main(int argc, char **argv) {
  struct dirent **names;
  int replayed = 0;
  LLVMFuzzerInitialize(&argc, &argv);
  for (int index = 1; index < argc; index++) {
    int count = scandir(argv[index], &names, NULL, alphasort);
    if (count < 0) {
      perror(argv[index]);
      return 2;
    }
    for (int at = 0; at < count; at++) {
      if (names[at]->d_name[0] != '.') {
        replay(argv[index], names[at]->d_name);
        replayed++;
      }
      free(names[at]);
    }
    free(names);
  }
  printf("%d\n", replayed);
  return 0;
}
