/* System calls for the egress proxy. */
#pragma once
#include <node_api.h>

void define_egress_functions(napi_env env, napi_value exports);
