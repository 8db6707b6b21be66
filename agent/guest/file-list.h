/*
 * Listing a directory, sorted, a page at a time, in bounded memory: each look at a directory keeps
 * the smallest names after the last one. So a page goes on where the one before ended, by name,
 * whatever changed in between.
 */
#pragma once
#include "file-task.h"

/* Lists a directory. Ends the process. */
_Noreturn void list_files(const struct file_task *task);
