/* Disks of the host, which the guest mounts over NFS. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "wire.h"

struct disk_mount {
  uint32_t server; /* In network byte order. */
  char export[LIMIT_EXPORT_MAX + 1], path[LIMIT_DIRECTORY_MAX + 1];
  bool read_only;
};

/*
 * Mounts a disk in a process of its own, which makes missing directories and waits for the server;
 * answers the request when it is done. A disk that is mounted there already is left alone.
 */
void mount_disk(const struct disk_mount *disk, uint32_t request);
/* True when the process that ended was one that mounted. */
bool mount_reaped(pid_t pid, int status);
/* Nobody waits for an answer any more. */
void mounts_forget_host(void);

/*
 * Whether locks that a server of mounted disks does not know are asked of it again; otherwise their
 * files fail. Allowed only while no process runs that could continue without its lock: what the
 * server refuses then is lost for good (agent/native/serve-disks/wal-locks.c).
 */
void allow_recovery(bool allowed);
/*
 * Has a child use each mounted disk, by which the kernel asks for all locks that it had, and allows
 * no recovery from then on. Answers the request after that.
 */
void recover_locks(uint32_t request);
/* Kills a child that has taken too long; returns when to be called again. */
uint64_t mounts_tick(void);
