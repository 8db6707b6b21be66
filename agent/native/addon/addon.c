/*
 * The system calls that Node lacks, as a Node-API module (nodejs.org/api/n-api.html). Each module
 * included below describes the functions that it defines.
 *
 * Calls that may block on a disk run on libuv's worker threads. Their promises reject with an Error
 * whose `code` is the errno name, as Node's own file functions do.
 */
#include <node_api.h>

#include "changes.h"
#include "container.h"
#include "descriptors.h"
#include "digest-calls.h"
#include "egress.h"
#include "files.h"
#include "give-up.h"
#include "listing-calls.h"
#include "lock-calls.h"
#include "memory.h"
#include "mounts.h"
#include "namespaces.h"
#include "object.h"
#include "programs.h"
#include "ram.h"

NAPI_MODULE_INIT() {
  define_mount_functions(env, exports);
  define_change_functions(env, exports);
  define_container_functions(env, exports);
  define_file_functions(env, exports);
  define_descriptor_functions(env, exports);
  define_digest_functions(env, exports);
  define_give_up_functions(env, exports);
  define_listing_functions(env, exports);
  define_lock_functions(env, exports);
  define_memory_functions(env, exports);
  define_namespace_functions(env, exports);
  define_object_functions(env, exports);
  define_egress_functions(env, exports);
  define_ram_functions(env, exports);
  define_spawn_functions(env, exports);
  return exports;
}
