import { readdir } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { SandboxRuntime } from '../../../shared/links/stream-protocol.ts';
import { paths } from '../../system/paths.ts';
import { readOptional } from '../../system/read-optional.ts';
import { writeDurably } from '../../system/write-durably.ts';

const NAME = 'sandbox-runtime';

/**
 * Records the runtime of a host's sandboxes. Another runtime cannot read their disks, and would
 * start them with empty ones.
 * @throws Error while the host has sandboxes of another runtime
 */
export async function claimRuntime(dataDir: string, runtime: SandboxRuntime): Promise<void> {
  const path = paths.sandboxRuntime(dataDir);
  const former = (await readOptional(path))?.trim();
  if (former === runtime) return;
  const sandboxes = await readdir(paths.sandboxes(dataDir)).catch(() => []);
  // Before there was a choice, every host had virtual machines.
  if (sandboxes.length > 0 && (former ?? 'microvm') !== runtime) {
    const message = `SANDBOX_RUNTIME cannot become ${runtime} while the host has other sandboxes`;
    throw new Error(`${message}: delete them first, or leave it at ${former ?? 'microvm'}`);
  }
  await writeDurably(dirname(path), NAME, runtime);
}
