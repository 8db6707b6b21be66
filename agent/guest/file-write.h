/*
 * Writing a file: all of the new content is in a file without a name before it takes the place of
 * the old one. Whatever ends the process before that leaves nothing behind; where the file system
 * cannot make such a file, it has a name of its own, which the process removes.
 */
#pragma once
#include "file-task.h"

/* Writes a file from stdin. Ends the process. */
_Noreturn void write_file(const struct file_task *task);
