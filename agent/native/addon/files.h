/* Files beneath a directory whose contents its owner controls. */
#pragma once
#include <node_api.h>

void define_file_functions(napi_env env, napi_value exports);
