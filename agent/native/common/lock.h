/* The lock that whoever uses a sandbox's directory holds; across hosts where they share it. */
#pragma once

/*
 * Opens the file, makes it if it is missing, and locks it (flock(2)) without waiting. The path must
 * still name the locked file then: one that was renamed away meanwhile is another host's. Returns a
 * descriptor that closes on exec, or -1 and errno: EWOULDBLOCK when somebody else holds the lock,
 * ESTALE when the path names another file by now.
 */
int take_lock(const char *path);
