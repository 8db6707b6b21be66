import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { CreatedDisk } from '../../shared/schemas/disk.ts';
import { type DiskManifest, parseManifest } from '../../shared/schemas/disk-manifest.ts';
import type { ExecResult } from '../../shared/schemas/exec.ts';
import type { ApiClient } from './api.ts';
import type { Stack } from './stack.ts';

export const newName = (): string => `disk-${randomBytes(6).toString('hex')}`;

/** A valid disk id that no disk has. */
export const missingDiskId = 'dsk-0123456789abcdef';

export const createDisk = (
  api: ApiClient,
  input: Record<string, unknown> = {},
): Promise<CreatedDisk> => api.data('POST', '/api/disks', { name: newName(), ...input });

export const exec = (api: ApiClient, diskId: string, command: string): Promise<ExecResult> =>
  api.data('POST', `/api/disks/${diskId}/exec`, { command });

export const diskFolder = (stack: Stack, diskId: string): string =>
  join(stack.environment['STORAGE_DIR'] ?? '', 'disks', diskId);

/** Reads the disk's manifest from the storage. */
export async function readManifest(stack: Stack, diskId: string): Promise<DiskManifest['disk']> {
  const text = await readFile(join(diskFolder(stack, diskId), 'manifest.json'), 'utf8');
  return parseManifest(text).disk;
}
