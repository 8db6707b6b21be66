/* SipHash-2-4 with 128 bits of output: https://github.com/veorq/SipHash */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { SIPHASH_KEY_BYTES = 16, SIPHASH_BYTES = 16 };

/* A message authentication code: who does not know the key cannot make one. */
void siphash(const uint8_t key[SIPHASH_KEY_BYTES], const uint8_t *bytes, size_t length,
             uint8_t code[SIPHASH_BYTES]);
