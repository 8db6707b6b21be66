/* MD5 and CRCs as part of the addon. */
#pragma once
#include <node_api.h>

void define_digest_functions(napi_env env, napi_value exports);
