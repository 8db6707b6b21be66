/* Stopping every process by signals, where no control group can freeze them. */
#pragma once
#include <stdbool.h>

/* One look at all processes; true when none of them runs. To be repeated until it is. */
bool stop_all(void);
/* Those that were stopped by us go on; those that somebody else had stopped do not. */
void continue_stopped(void);
