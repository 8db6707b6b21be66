/** Limits of the console and the tools for language models. */
export const SITE_LIMITS = {
  mcpCallsPerNodeMax: 512, // Concurrent calls of tools for language models.

  // Sessions of the console
  consoleSessionMs: 12 * 3600_000,
  consoleCookieLengthMax: 1024,
} as const;
