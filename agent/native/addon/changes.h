/* Whether anything of a file system was changed. */
#pragma once
#include <node_api.h>

void define_change_functions(napi_env env, napi_value exports);
