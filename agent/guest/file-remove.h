/* Removing what is at a path. Links are removed themselves; mounted file systems are left alone. */
#pragma once
#include "file-task.h"

/* Removes what is at a path. Ends the process. */
_Noreturn void remove_files(const struct file_task *task);
