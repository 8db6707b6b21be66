/*
 * Memory of this process, as part of the addon.
 *
 *   trimMemory() -> undefined
 *     Gives back to the kernel each page that malloc keeps free (malloc_trim(3)). By itself malloc
 *     gives back only the end of its heap, and large blocks.
 */
#include "memory.h"

#include <malloc.h>

static napi_value js_trim_memory(napi_env env, napi_callback_info info) {
  napi_value result;
  (void)info;
  malloc_trim(0);
  napi_get_undefined(env, &result);
  return result;
}

void define_memory_functions(napi_env env, napi_value exports) {
  const napi_property_descriptor functions[] = {
      {"trimMemory", NULL, js_trim_memory, NULL, NULL, NULL, napi_enumerable, NULL},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
}
