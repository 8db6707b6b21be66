/*
 * Many simulated hosts in one process. Its parent says what to do; it ends when its parent is gone.
 */
import { SimulatedHost, type SimulatedHostOptions, watchStorage } from './region-host.ts';
import { newHostId } from '../shared/ids.ts';

const SANDBOXES_AT_ONCE = 32;

/** Requests of the parent. */
export type HostsRequest =
  | { readonly ask: 'open'; readonly hosts: number; readonly options: SimulatedHostOptions }
  /** So many sandboxes on each host, the accounts in turn. */
  | { readonly ask: 'populate'; readonly sandboxes: number; readonly accountIds: readonly string[] }
  | { readonly ask: 'close' };

export type HostsAnswer =
  | { readonly made: readonly { readonly accountId: string; readonly sandboxId: string }[] }
  | { readonly error: string };

const hosts: SimulatedHost[] = [];

async function populate(
  sandboxes: number,
  accountIds: readonly string[],
): Promise<{ accountId: string; sandboxId: string }[]> {
  const made: { accountId: string; sandboxId: string }[] = [];
  const prefix = newHostId();
  const total = hosts.length * sandboxes;
  let next = 0;
  const work = async (): Promise<void> => {
    for (;;) {
      const index = next;
      next += 1;
      const host = hosts[index % hosts.length];
      if (index >= total || host === undefined) return;
      const accountId = accountIds[index % accountIds.length] ?? '';
      made.push({ accountId, sandboxId: await host.addSandbox(accountId, `${prefix}-${index}`) });
    }
  };
  await Promise.all(Array.from({ length: SANDBOXES_AT_ONCE }, work));
  return made;
}

async function answerTo(request: HostsRequest): Promise<HostsAnswer> {
  switch (request.ask) {
    case 'open': {
      const storage = watchStorage(request.options.directory);
      for (let count = 0; count < request.hosts; count += 1) {
        hosts.push(await SimulatedHost.open(request.options, storage));
      }
      return { made: [] };
    }
    case 'populate': {
      return { made: await populate(request.sandboxes, request.accountIds) };
    }
    case 'close': {
      await Promise.all(hosts.map((host) => host.close()));
      return { made: [] };
    }
  }
}

process.on('message', (request: HostsRequest) => {
  answerTo(request).then(
    (answer) => process.send?.(answer),
    (error: unknown) => process.send?.({ error: String(error) } satisfies HostsAnswer),
  );
});
process.on('disconnect', () => process.exit());
