/* The requests of the host. */
#pragma once
#include "wire.h"

void handle_command(uint8_t kind, uint32_t request, struct reader *reader);
/* A new host has connected: drops what the former one had staged, and the answers it awaited. */
void commands_forget_host(void);
