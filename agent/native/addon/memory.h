/* Memory of this process. */
#pragma once
#include <node_api.h>

void define_memory_functions(napi_env env, napi_value exports);
