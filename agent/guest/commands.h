/* What the host asks for. */
#pragma once
#include "wire.h"

void handle_command(uint8_t kind, uint32_t request, struct reader *reader);
/* A new host has come: what the former one had begun to say is void, and its answers go nowhere. */
void commands_forget_host(void);
