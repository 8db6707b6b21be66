/* Stopping every process by signals, where no control group can freeze them. */
#pragma once
#include <stdbool.h>

/* Scans all processes once and stops those that run; repeat it until it returns true: none runs. */
bool stop_all(void);
/* Resumes the processes stopped here, but not those that had been stopped before. */
void continue_stopped(void);
