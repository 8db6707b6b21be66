import Type from 'typebox';
import { type ErrorCode, errorCodes } from '../errors.ts';
import { hostIdPattern } from '../ids.ts';
import { SandboxImage } from '../schemas/sandbox-image.ts';
import { ProtocolVersions } from './protocol-versions.ts';
import { compile, taggedUnion } from '../validate.ts';
import { parseJson } from '../json.ts';

/*
 * The agent link: a WebSocket from an agent to a control node of its region. In a large region not
 * all are linked with all (decision 0102).
 *
 * Each message is binary: a 4-byte big-endian length, a JSON header of that length, then the body,
 * in parts of the lengths that the header's `body` lists (a command's output; none in most frames).
 */

/** Absolute URLs in which a path can be appended: without query and fragment. */
export const publicUrlPattern = '^https?://[^/?#\\s]+(/[^?#\\s]*)?$';

const JobId = Type.String({ minLength: 1, maxLength: 64 });
const bodyLengths = Type.Array(Type.Integer({ minimum: 0 }), { maxItems: 2 });

/** The kind of sandboxes on a host (SANDBOX_RUNTIME). */
export const sandboxRuntimes = ['microvm', 'container'] as const;
export type SandboxRuntime = (typeof sandboxRuntimes)[number];

/** A host's resources, and their current use. */
export const HostLoad = Type.Object({
  execSlots: Type.Integer({ minimum: 0 }),
  execsRunning: Type.Integer({ minimum: 0 }),
  execsWaiting: Type.Integer({ minimum: 0 }),
  /** Whether new work would be refused for want of free space. */
  storageLow: Type.Boolean(),
  /** Capacity for sandboxes, memory in MiB. All zero while `isEnabled` is false. */
  sandboxes: Type.Object({
    isEnabled: Type.Boolean(),
    memoryMib: Type.Integer({ minimum: 0 }),
    memoryMibUsed: Type.Integer({ minimum: 0 }),
    vcpus: Type.Integer({ minimum: 0 }),
    vcpusUsed: Type.Integer({ minimum: 0 }),
    /**
     * Whether new sandboxes would be refused: little free space or memory, or an operator's order.
     */
    isLow: Type.Boolean(),
  }),
  /** Builds of images that run or wait, and how many run at once; absent or 0: it builds none. */
  images: Type.Optional(
    Type.Object({ active: Type.Integer({ minimum: 0 }), max: Type.Integer({ minimum: 0 }) }),
  ),
  /** Whether an operator lets it have no disk that it does not have already. */
  cordoned: Type.Optional(Type.Boolean()),
  /** Whether the host accepts no new work: it is shutting down, or it cannot reach Redis. */
  draining: Type.Boolean(),
});
export type HostLoad = Type.Static<typeof HostLoad>;

/** The load of a host that runs no sandboxes. */
export const NO_SANDBOXES: HostLoad['sandboxes'] = {
  isEnabled: false,
  memoryMib: 0,
  memoryMibUsed: 0,
  vcpus: 0,
  vcpusUsed: 0,
  isLow: false,
};

/**
 * Whether the host keeps the link only because the node has asked for it: the node closes it when
 * it is not used for a while (decision 0102). Absent: it is one of the links that the host has
 * chosen.
 */
const isSpare = Type.Optional(Type.Boolean());

export const AgentFrame = taggedUnion('type', [
  Type.Object({
    type: Type.Literal('register'),
    hostId: Type.String({ pattern: hostIdPattern }),
    clusterId: Type.String(),
    region: Type.String(),
    publicUrl: Type.String({ pattern: publicUrlPattern, maxLength: 2048 }),
    /** URL of the host's internal port, for the data endpoint. */
    internalUrl: Type.String({ pattern: '^https?://', maxLength: 2048 }),
    /** The image that its sandboxes begin with. */
    image: Type.Optional(SandboxImage),
    /** How it runs sandboxes, if it runs any. */
    sandboxRuntime: Type.Optional(Type.Enum([...sandboxRuntimes])),
    /** Absent: version 1 alone. */
    protocol: Type.Optional(ProtocolVersions),
    load: HostLoad,
    isSpare,
  }),
  // Each second, or whenever it has changed: see `onlyChangedLoads`.
  Type.Object({ type: Type.Literal('heartbeat'), load: HostLoad, isSpare }),
  // The work begins: if the agent is lost after this, the outcome is unknown.
  Type.Object({ type: Type.Literal('accepted'), jobId: JobId }),
  Type.Object({
    type: Type.Literal('result'),
    jobId: JobId,
    result: Type.Object({}),
    body: bodyLengths,
  }),
  // A part of the result, ahead of its end. Only of a job whose payload asks for parts.
  Type.Object({ type: Type.Literal('part'), jobId: JobId, body: bodyLengths }),
  Type.Object({
    type: Type.Literal('error'),
    jobId: JobId,
    /** A newer agent may have codes that this node does not know. */
    code: Type.Unsafe<ErrorCode>(Type.String({ pattern: '^[a-z_]{1,64}$' })),
    message: Type.String({ maxLength: 4096 }),
  }),
]);
export type AgentFrame = Type.Static<typeof AgentFrame>;

export const ControlFrame = taggedUnion('type', [
  Type.Object({
    type: Type.Literal('registered'),
    nodeId: Type.String(),
    /** The node's public connection keys, signed with the cluster's secret (connection-keys.ts). */
    connectionKeys: Type.String({ maxLength: 2048 }),
    /**
     * Whether an unchanged load need not be sent again: the node counts the answer to a ping as a
     * sign of life. Absent: it knows heartbeats only.
     */
    onlyChangedLoads: Type.Optional(Type.Boolean()),
    /** Absent: version 1 alone. */
    protocol: Type.Optional(ProtocolVersions),
  }),
  // The caller hung up.
  Type.Object({ type: Type.Literal('cancel'), jobId: JobId }),
]);
export type ControlFrame = Type.Static<typeof ControlFrame>;

const checkAgentFrame = compile(AgentFrame);
const checkControlFrame = compile(ControlFrame);

const LENGTH_BYTES = 4;
const knownCodes: ReadonlySet<string> = new Set(errorCodes);

export function encodeFrame(
  frame: AgentFrame | ControlFrame,
  body: readonly Buffer[] = [],
): Buffer {
  const header = Buffer.from(JSON.stringify(frame));
  const length = Buffer.alloc(LENGTH_BYTES);
  length.writeUInt32BE(header.length);
  return Buffer.concat([length, header, ...body]);
}

function split(message: Buffer): { header: unknown; rest: Buffer } {
  if (message.length < LENGTH_BYTES) throw new Error('frame is too short');
  const end = LENGTH_BYTES + message.readUInt32BE();
  if (end > message.length) throw new Error('frame header is cut off');
  return {
    header: parseJson(message.toString('utf8', LENGTH_BYTES, end)),
    rest: message.subarray(end),
  };
}

const withKnownCode = (frame: AgentFrame): AgentFrame =>
  frame.type !== 'error' || knownCodes.has(frame.code)
    ? frame
    : { ...frame, code: 'internal_server_error' };

/** @throws Error when the message is not a valid frame; close the link then */
export function decodeAgentFrame(message: Buffer): { frame: AgentFrame; body: Buffer[] } {
  const { header, rest } = split(message);
  const frame = withKnownCode(checkAgentFrame(header, 'frame'));
  const lengths = 'body' in frame ? frame.body : [];
  const body: Buffer[] = [];
  let offset = 0;
  for (const length of lengths) {
    body.push(rest.subarray(offset, offset + length));
    offset += length;
  }
  if (offset !== rest.length) throw new Error('frame body is not as long as its header says');
  return { frame, body };
}

/** @throws Error when the message is not a valid frame; close the link then */
export function decodeControlFrame(message: Buffer): ControlFrame {
  return checkControlFrame(split(message).header, 'frame');
}
