import { setTimeout as sleep } from 'node:timers/promises';
import { DIRECTORY_LIMITS } from '../../../shared/directory/limits.ts';
import { newName } from '../../helpers/disks.ts';
import { waitFor } from '../../helpers/wait.ts';
import { attempt } from '../attempt.ts';
import { succeed, type Workload, type WorkloadContext } from '../workload.ts';

const PAUSE_MS = { min: 100, max: 600 } as const;
const KEPT_MAX = 12;
const CLEARED_WITHIN_MS = 60_000;

interface DiskOfList {
  readonly id: string;
  readonly name: string;
}

/** Creates and deletes disks and API keys. */
export class Records implements Workload {
  readonly #context: WorkloadContext;
  readonly #diskFolders: () => Promise<string[]>;
  /** Acknowledged and not deleted. */
  readonly #disks = new Map<string, DiskOfList>();
  /** Whether these exist is unknown; creating them again must succeed. */
  readonly #unsure = new Set<string>();
  /** Their deletion was begun; whether it was acknowledged does not matter. */
  readonly #deleted = new Map<string, { isSure: boolean }>();
  readonly #keys = new Map<string, string>();
  readonly #revoked = new Set<string>();

  constructor(context: WorkloadContext, diskFolders: () => Promise<string[]>) {
    this.#context = context;
    this.#diskFolders = diskFolders;
  }

  async run(over: AbortSignal): Promise<void> {
    const { random } = this.#context;
    while (!over.aborted) {
      const way = random.weighted({ disk: 4, key: 2, remove: this.#disks.size, revoke: 1 });
      if (way === 'disk') await this.#createDisk();
      else if (way === 'key') await this.#createKey();
      else if (way === 'remove') await this.#deleteDisk();
      else await this.#revokeKey();
      await sleep(random.integer(PAUSE_MS.min, PAUSE_MS.max));
    }
  }

  async check(): Promise<void> {
    const { findings, api } = this.#context;
    for (const name of this.#unsure) {
      const { id } = await succeed<DiskOfList>(this.#context, ['POST', '/api/disks'], {
        body: { name },
      });
      this.#disks.set(id, { id, name });
    }
    this.#unsure.clear();
    await this.#finishDeletions();
    for (const { id, name } of this.#disks.values()) {
      const { code } = await attempt(findings, api, ['GET', `/api/disks/${id}`]);
      if (code !== 'ok') this.#lost(`disk ${name} (${id}) answers ${code}`);
    }
    for (const token of this.#keys.values()) await this.#checkKey(token, 'ok');
    for (const token of this.#revoked) await this.#checkKey(token, 'unauthorized');
    await this.#checkStorage();
  }

  #lost(what: string): void {
    this.#context.findings.count('losses');
    this.#context.findings.report(what);
  }

  async #createDisk(): Promise<void> {
    if (this.#disks.size >= KEPT_MAX) return;
    const { findings, api } = this.#context;
    const name = newName();
    const { code, data } = await attempt(findings, api, ['POST', '/api/disks'], { body: { name } });
    if (code !== 'ok') {
      this.#unsure.add(name);
      return;
    }
    findings.count('acknowledged disks');
    const { id } = data as DiskOfList;
    this.#disks.set(id, { id, name });
    // Attached once, so that there is something to unmount.
    const body = { command: 'echo used > file' };
    await attempt(findings, api, ['POST', `/api/disks/${id}/exec`], { body });
  }

  async #deleteDisk(): Promise<void> {
    if (this.#disks.size === 0) return;
    const { findings, api, random } = this.#context;
    const { id } = random.pick([...this.#disks.values()]);
    this.#disks.delete(id);
    const { code } = await attempt(findings, api, ['DELETE', `/api/disks/${id}`]);
    this.#deleted.set(id, { isSure: code === 'ok' });
    if (code === 'ok') findings.count('acknowledged deletions');
  }

  /** Asserts that acknowledged deletions hold, and deletes the rest. */
  async #finishDeletions(): Promise<void> {
    const { findings, api } = this.#context;
    for (const [id, { isSure }] of this.#deleted) {
      const { code } = await attempt(findings, api, ['GET', `/api/disks/${id}`], {
        expected: ['not_found'],
      });
      if (isSure && code !== 'not_found') this.#lost(`deleted disk ${id} answers ${code}`);
      if (isSure) continue;
      await waitFor(`the deletion of ${id}`, async () => {
        const again = await attempt(findings, api, ['DELETE', `/api/disks/${id}`], {
          expected: ['not_found'],
        });
        return again.code === 'ok' || again.code === 'not_found';
      });
      this.#deleted.set(id, { isSure: true });
    }
  }

  async #createKey(): Promise<void> {
    const { findings, api } = this.#context;
    const body = { name: newName() };
    const { code, data } = await attempt(findings, api, ['POST', '/api/tokens'], { body });
    if (code !== 'ok') return;
    findings.count('acknowledged keys');
    const { id, token } = data as { id: string; token: string };
    this.#keys.set(id, token);
  }

  async #revokeKey(): Promise<void> {
    if (this.#keys.size === 0) return;
    const { findings, api, random } = this.#context;
    const [id, token] = random.pick([...this.#keys]);
    this.#keys.delete(id);
    const { code } = await attempt(findings, api, ['DELETE', `/api/tokens/${id}`]);
    if (code === 'ok') this.#revoked.add(token);
  }

  async #checkKey(token: string, expected: string): Promise<void> {
    const { findings, api } = this.#context;
    const ask = () =>
      attempt(findings, api.withKey(token), ['GET', '/api/disks'], { expected: ['unauthorized'] });
    let { code } = await ask();
    if (code === 'ok' && expected !== 'ok') {
      await sleep(DIRECTORY_LIMITS.apiKeyRememberedMs); // Another node may have deleted it just now.
      ({ code } = await ask());
    }
    if (code !== expected) this.#lost(`a key answers ${code}, not ${expected}`);
  }

  /** Asserts that the storage holds the existing disks' folders and nothing else. */
  async #checkStorage(): Promise<void> {
    let odd: string[] = [];
    try {
      await waitFor(
        'the storage to be cleared',
        async () => {
          const disks = await succeed<DiskOfList[]>(this.#context, ['GET', '/api/disks']);
          const ids = new Set(disks.map(({ id }) => id));
          const found = new Set(await this.#diskFolders());
          odd = [...found.symmetricDifference(ids)];
          return odd.length === 0;
        },
        CLEARED_WITHIN_MS,
      );
    } catch {
      this.#context.findings.count('leftovers', odd.length);
      this.#context.findings.report(`the storage and the list of disks differ: ${odd.join(', ')}`);
    }
  }
}
