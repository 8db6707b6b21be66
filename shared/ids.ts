import { randomBytes, randomUUID } from 'node:crypto';

const randomHex = (bytes: number): string => randomBytes(bytes).toString('hex');

/** `dsk-` and 16 hex digits, as callers see it. */
export const newDiskId = (): string => `dsk-${randomHex(8)}`;
/** `mnt-` and 16 hex digits: object storage behind a disk. */
export const newBucketId = (): string => `mnt-${randomHex(8)}`;
export const newAccountId = (): string => `acct-${randomHex(8)}`;
export const newHostId = (): string => `host-${randomHex(6)}`;
export const newNodeId = (): string => `node-${randomHex(6)}`;
/** Made for every request, so from `randomUUID`, which draws its random bytes in batches. */
export const newRequestId = (): string => `req-${randomUUID()}`;
/** The id of a queued job and of the work it starts. BullMQ refuses `:` in job ids. */
export const newJobId = (): string => randomUUID();

/** A UUID of version 7 (RFC 9562): it begins with the time, so ids sort by age. */
export function newSandboxId(): string {
  const bytes = randomBytes(16);
  bytes.writeUIntBE(Date.now(), 0, 6);
  bytes.writeUInt8((bytes.readUInt8(6) & 0x0f) | 0x70, 6);
  bytes.writeUInt8((bytes.readUInt8(8) & 0x3f) | 0x80, 8);
  const hex = bytes.toString('hex');
  return [8, 12, 16, 20, 32].map((end, i) => hex.slice([0, 8, 12, 16, 20][i], end)).join('-');
}

/** Id of an event in the activity of an account: sorts by time, too. */
export const newEventId = (): string => newSandboxId();

/**
 * Names a sandbox in the hostnames of its ports: its id as one DNS label may have it. Not a secret:
 * whoever reaches a port knows it, and it opens nothing.
 */
export const routeIdOf = (sandboxId: string): string => sandboxId.replaceAll('-', '');

export const sandboxIdPattern = '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$';
export const diskIdPattern = '^dsk-[0-9a-f]{16}$';
export const accountIdPattern = '^acct-[0-9a-f]{16}$';
export const imageIdPattern = '^[0-9a-f]{64}$';
export const hostIdPattern = '^host-[0-9a-f]{12}$';
export const nodeIdPattern = '^node-[0-9a-f]{12}$';
export const regionPattern = '^[a-z0-9]+-[a-z0-9]+(-[a-z0-9]+)*$';
export const requestIdPattern = '^[A-Za-z0-9._-]{1,64}$';
