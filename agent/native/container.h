/* What a container needs before runc starts it. */
#pragma once
#include <node_api.h>

void define_container_functions(napi_env env, napi_value exports);
