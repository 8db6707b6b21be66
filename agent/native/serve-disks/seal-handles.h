/* The agreement between serve-disks.c and seal-handles.c, which the NFS server loads. */
#pragma once

/* Where the server finds its disks, each under its name. */
#define SERVED_DISKS "/disks"

/*
 * A fourth argument of open_by_handle_at(2), which has only three: the mark of a call whose handle
 * had the right seal. A filter refuses calls without it, so that a server in which the library does
 * not come first, for whatever reason, opens nothing at all.
 */
enum { SEALED_CALL = 0x5ea1ed };
