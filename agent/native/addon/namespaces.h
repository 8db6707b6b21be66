/* Sockets in other network namespaces. */
#pragma once
#include <node_api.h>

void define_namespace_functions(napi_env env, napi_value exports);
