/* Locks of directories. */
#pragma once
#include <node_api.h>

void define_lock_functions(napi_env env, napi_value exports);
