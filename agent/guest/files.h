/*
 * Operations on files, each in a process of its own: a file system that hangs, or a directory
 * without end, holds up nothing else. The process writes its answer to stdout and reads content
 * from stdin; their forms are in file-task.h.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

/*
 * Carries an operation out and ends the process. Runs in a child of the guest agent that has
 * nothing open but its streams.
 * @param operation as the host sent it
 * @param default_user whom new files belong to, as user.h spells it
 */
_Noreturn void run_file_operation(const uint8_t *operation, size_t length,
                                  const char *default_user);
