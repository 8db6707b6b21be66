/*
 * Frames of the guest's channel, made and read as guest-protocol.ts (agent/machines/) says: slow,
 * and plain.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

uint32_t reference_crc(const uint8_t *bytes, size_t length);
/* Stuffs the content; with its checksum and the zero behind it. Returns the length. */
size_t reference_frame(const uint8_t *content, size_t length, uint8_t *into);
/* Unstuffs; SIZE_MAX when it is not stuffed rightly. */
size_t reference_unstuff(const uint8_t *stuffed, size_t length, uint8_t *into);
