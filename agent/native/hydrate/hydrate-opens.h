/*
 * The opens that wait for the kernel's answer (hydrate.c). Only the process that works uses them.
 */
#pragma once
#include <stdint.h>
#include <sys/fanotify.h>

/*
 * Takes over what former processes left in the table of descriptors: opens that wait go on waiting,
 * all but what the processes share is closed. Returns what is readable once copies were opened.
 */
int take_over_opens(void);

/* Lets go on what needs not wait, and tells the agent of the others. */
void read_opens(void);

/* Tells the agent of everything that waits. */
void tell_opens(void);

/*
 * Ends the opens of processes that have ended: the descriptor would keep the file system mounted.
 */
void drop_ended_opens(void);

/* The agent's words; of an open that does not wait any more they mean nothing. */
void allow_open(uint32_t serial, int fd);
void deny_open(uint32_t serial, int fd);
void ask_for_copy(uint32_t serial, int fd);

/* Tells the agent of the copies that were opened. */
void read_copies(void);

/* Has every open fail that former processes, with a table of their own, have left unanswered. */
void deny_former_opens(void);
