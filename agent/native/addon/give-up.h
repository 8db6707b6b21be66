/* Giving up the contents of files that object storage has as well. */
#pragma once
#include <node_api.h>

void define_give_up_functions(napi_env env, napi_value exports);
