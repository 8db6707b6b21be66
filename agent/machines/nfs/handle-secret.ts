import { randomBytes } from 'node:crypto';
import { basename, dirname } from 'node:path';
import { reseal, type Ring, seal, unseal } from '../../../shared/secrets.ts';
import { writeOnce } from '../../system/write-once.ts';
import { writeDurably } from '../../system/write-durably.ts';

const SECRET_BYTES = 32;

interface HandleSecretOptions {
  /** The file with the secret. */
  readonly path: string;
  /** The owner of the secret: a host, or a storage whose hosts share it. */
  readonly owner: string;
  /** Whether guests of this host may have files open already. */
  readonly hasSandboxes: boolean;
}

/**
 * The secret of a host, or of all that share their sandboxes' storage, that keys of file handles
 * follow from (`sealKey`). It never changes, because guests keep handles for as long as they mount
 * a disk, and is stored sealed with ENCRYPTION_KEY. Until it was stored, ENCRYPTION_KEY itself was
 * in its place: where there are sandboxes it begins as that, so their handles stay valid.
 * @returns 32 bytes
 * @throws Error when the ring lacks the key that has sealed it
 */
export async function openHandleSecret(
  encryptionKeys: Ring<Buffer>,
  { path, owner, hasSandboxes }: HandleSecretOptions,
): Promise<Buffer> {
  const context = `handle secret of ${owner}`;
  const secret = hasSandboxes ? encryptionKeys[0] : randomBytes(SECRET_BYTES);
  const stored = await writeOnce(path, seal(encryptionKeys, secret.toString('base64'), context));
  try {
    const opened = Buffer.from(unseal(encryptionKeys, stored, context), 'base64');
    const sealedAnew = reseal(encryptionKeys, stored, context);
    if (sealedAnew !== undefined) await writeDurably(dirname(path), basename(path), sealedAnew);
    return opened;
  } catch (cause) {
    const message = `${path} was sealed with a key that ENCRYPTION_KEY lacks: put it after the others`;
    throw new Error(message, { cause });
  }
}
