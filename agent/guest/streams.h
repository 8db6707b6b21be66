/* What goes in and out of a process. */
#ifndef BERTH_GUEST_STREAMS_H
#define BERTH_GUEST_STREAMS_H

#include "process.h"
#include "spawn.h"

int open_streams(struct process *process, const struct spawned *spawned);
/* The process is forgotten: whoever still writes is told by the system. */
void close_streams(struct process *process);
/* The end was reported: what children of it still put out is read and dropped. */
void leave_streams(struct process *process);
/* Reads what there is now, at most one piece. The source may be gone afterwards. */
void read_source(struct source *source);
void resume_outputs(struct process *process);
/* The shell has ended: what may lie in its pipes is still to be read. */
void note_owed(struct process *process);

#endif
