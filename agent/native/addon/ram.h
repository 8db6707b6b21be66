/* The RAM of virtual machines: memory files, and checkpoints of what machines change in them. */
#pragma once
#include <node_api.h>

void define_ram_functions(napi_env env, napi_value exports);
