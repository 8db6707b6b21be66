/*
 * Telling of changes in a directory, and in those below it. A directory is watched before it is
 * read, and what is found in a new one is told as created: so nothing that happens in between is
 * missed, though it may be told twice. Where the kernel had to drop something, that is told.
 */
#pragma once
#include "file-task.h"

/* Tells of changes until it is ended. Ends the process. */
_Noreturn void watch_files(const struct file_task *task);
