import { Account } from './account.ts';
import { ApiKeys } from './api-keys.ts';
import { Disks, EXEC_POLICY } from './disk.ts';
import { type BerthOptions, type CreatingCallOptions, Http } from './http.ts';
import { Hosts } from './hosts.ts';
import { Images } from './image.ts';
import { Sandboxes } from './sandbox.ts';
import { Snapshots } from './snapshot.ts';
import { Webhooks } from './webhooks.ts';
import type { ExecResult, RunMultiExec } from './types.ts';

/**
 * The account's disks, sandboxes and everything else behind one API key.
 *
 * @example
 * const berth = new Berth({ baseUrl: 'https://berth.example', apiKey: 'key-…' });
 * await using sandbox = await berth.sandboxes.create();
 * const { stdout } = await sandbox.run('uname -a');
 */
export class Berth {
  readonly disks: Disks;
  readonly sandboxes: Sandboxes;
  readonly snapshots: Snapshots;
  readonly images: Images;
  readonly apiKeys: ApiKeys;
  readonly account: Account;
  readonly webhooks: Webhooks;
  readonly hosts: Hosts;
  readonly #http: Http;

  constructor(options: BerthOptions) {
    const http = new Http(options);
    this.#http = http;
    this.disks = new Disks(http);
    this.sandboxes = new Sandboxes(http);
    this.snapshots = new Snapshots(http);
    this.images = new Images(http);
    this.apiKeys = new ApiKeys(http);
    this.account = new Account(http);
    this.webhooks = new Webhooks(http);
    this.hosts = new Hosts(http);
  }

  /** Runs one command on several disks, and waits for its end. @throws as `Disk.exec` */
  async exec(exec: RunMultiExec, options: CreatingCallOptions = {}): Promise<ExecResult> {
    const { data } = await this.#http.call(EXEC_POLICY, options, (client, init) =>
      client.POST('/api/exec', { ...init, body: exec }),
    );
    return data;
  }
}
