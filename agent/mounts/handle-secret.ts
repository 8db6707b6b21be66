import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { errnoOf } from '../../shared/errors.ts';
import { reseal, type Ring, seal, unseal } from '../../shared/secrets.ts';
import { paths } from '../system/paths.ts';
import { writeDurably } from '../system/write-durably.ts';

const SECRET_BYTES = 32;

interface HandleSecretOptions {
  readonly hostId: string;
  readonly dataDir: string;
  /** Whether guests of this host may have files open already. */
  readonly hasSandboxes: boolean;
}

/**
 * The secret of this host that keys of file handles follow from (`sealKey`). It never changes, because
 * guests keep handles for as long as they mount a disk, and is stored sealed with ENCRYPTION_KEY. Until
 * it was stored, ENCRYPTION_KEY itself was in its place: where there are sandboxes it begins as that,
 * so their handles stay valid.
 * @returns 32 bytes
 * @throws Error when the ring lacks the key that has sealed it
 */
export async function openHandleSecret(
  encryptionKeys: Ring<Buffer>,
  { hostId, dataDir, hasSandboxes }: HandleSecretOptions,
): Promise<Buffer> {
  const context = `handle secret of ${hostId}`;
  const stored = await readStored(dataDir);
  if (stored === undefined) {
    const secret = hasSandboxes ? encryptionKeys[0] : randomBytes(SECRET_BYTES);
    await store(dataDir, seal(encryptionKeys, secret.toString('base64'), context));
    return secret;
  }
  try {
    const secret = Buffer.from(unseal(encryptionKeys, stored, context), 'base64');
    const sealedAnew = reseal(encryptionKeys, stored, context);
    if (sealedAnew !== undefined) await store(dataDir, sealedAnew);
    return secret;
  } catch (cause) {
    const path = paths.handleSecret(dataDir);
    const message = `${path} was sealed with a key that ENCRYPTION_KEY lacks: put it behind the others`;
    throw new Error(message, { cause });
  }
}

async function readStored(dataDir: string): Promise<string | undefined> {
  try {
    return await readFile(paths.handleSecret(dataDir), 'utf8');
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}

async function store(dataDir: string, sealed: string): Promise<void> {
  const path = paths.handleSecret(dataDir);
  await writeDurably(dirname(path), basename(path), sealed);
}
