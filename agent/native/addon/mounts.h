/* Mounts and pipes. */
#pragma once
#include <node_api.h>

void define_mount_functions(napi_env env, napi_value exports);
