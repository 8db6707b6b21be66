/* Sorted pages of a directory. */
#pragma once
#include <node_api.h>

void define_listing_functions(napi_env env, napi_value exports);
