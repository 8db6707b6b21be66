/* Objects, which are files with an attribute, opened in one call. */
#pragma once
#include <node_api.h>

void define_object_functions(napi_env env, napi_value exports);
