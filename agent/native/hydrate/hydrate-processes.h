/* The processes of `hydrate`, of which one works (hydrate.c). */
#pragma once

/* Makes the calling process the first one, and has it work. Returns once the work is over. */
void begin_work(void);

/* Starts those that have ended. Only the process that works may call it. */
void replace_ended_processes(int self);
