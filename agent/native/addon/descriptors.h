/* Descriptors of other processes, and trees of files. */
#pragma once
#include <node_api.h>

void define_descriptor_functions(napi_env env, napi_value exports);
