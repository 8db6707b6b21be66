/* Prepares a container's namespace and devices before runc starts it. */
#pragma once
#include <node_api.h>

void define_container_functions(napi_env env, napi_value exports);
