import { descriptorLimit } from '../../../shared/http/descriptors.ts';
import { HOUR_MS } from '../../../shared/units.ts';

/** Bounds of the proxy. */
export const PROXY_LIMITS = {
  /** Each has a second descriptor, for the server; some are needed for other things. */
  connectionsMax: Math.min(4096, Math.floor(descriptorLimit() / 3)),
  connectionsPerSlotMax: 512,
  /** Names that are looked up for a slot at the same time: more than a policy has in a list. */
  namesPerSlotMax: 512,
  /** Time for a client's first byte where rules go by name, and where nobody asks for its name. */
  firstByteMs: { named: 10_000, unnamed: 3_000 },
  /** Time for the rest of a ClientHello. */
  helloMs: 10_000,
  /** Kinds of questions for names that a slot counts. */
  refusedNamesMax: 256,
  connectMs: 10_000,
  /** Time for one of several addresses, before the next one is tried. */
  attemptMs: 2_000,
  handshakeMs: 10_000,
  headMs: 20_000,
  /** How long nothing may move, in a tunnel and in a request under way. */
  idleMs: HOUR_MS,
  keepAliveMs: 65_000,
  /** Requests of one connection that wait for their answers. */
  pipelinedMax: 64,
  headerBytesMax: 64 * 1024,
} as const;
