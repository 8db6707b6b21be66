/** The guest agent, PID 1 of a sandbox's virtual machine; see agent/guest/main.c. */
export const guestPath = new URL('../../guest/build/guest', import.meta.url).pathname;
