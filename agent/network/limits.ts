/** Limits of the networks of machines. */
export const NETWORK_LIMITS = {
  nfsPort: 2049,

  networkAddressesKeptMax: 2_048, // Addresses of a policy's names, over a pause and in a copy.

  // A router and its host have an entry for each connection of their sandboxes (nf_conntrack_max).
  connectionsPerSandboxMax: 4096,
  // New ones over TCP, whose entries stay for a while after their end and are not counted then.
  newConnectionsPerSecondMax: 300,
  newConnectionsBurstMax: 5000,
  // To the resolver that all sandboxes of a host share. It keeps what nobody answers for 10 s, and
  // the kernel counts what was answered for up to a second.
  dnsPacketsPerSecondMax: 1000,
  dnsQuestionsPerSandboxMax: 400,
  dnsQuestionsPerHostMax: 8000,
} as const;
