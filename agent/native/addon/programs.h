/* Programs that are started without a copy of the agent's page tables. */
#pragma once
#include <node_api.h>

void define_spawn_functions(napi_env env, napi_value exports);
