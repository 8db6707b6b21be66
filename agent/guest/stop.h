/* Stopping every process by signals, where no control group can freeze them. */
#ifndef BERTH_GUEST_STOP_H
#define BERTH_GUEST_STOP_H

#include <stdbool.h>

/* One look at all processes; true when none of them runs. To be repeated until it is. */
bool stop_all(void);
/* Those that were stopped by us go on; those that somebody else had stopped do not. */
void continue_stopped(void);

#endif
