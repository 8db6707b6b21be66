import { type Job, Worker } from 'bullmq';
import { pino } from 'pino';
import { ConnectionKeys } from '../../agent/control-link/connection-keys.ts';
import { ControlLinks } from '../../agent/control-link/control-link.ts';
import { repeatInBackground } from '../../shared/background.ts';
import type { ControlNodes } from '../../shared/directory/control-nodes.ts';
import { queues } from '../../shared/directory/keys.ts';
import { queueConnection } from '../../shared/directory/redis.ts';
import { AppError } from '../../shared/errors.ts';
import { newHostId } from '../../shared/ids.ts';
import { JobSeal } from '../../shared/jobs/job-seal.ts';
import type { JobEnvelope } from '../../shared/jobs/jobs.ts';
import { LIMITS } from '../../shared/limits.ts';
import { type HostLoad, NO_SANDBOXES } from '../../shared/links/stream-protocol.ts';
import type { Stack } from './stack.ts';
import { waitFor } from './wait.ts';

/** A load without capacity, so that only jobs for its own sandboxes come here. */
const LOAD = {
  execSlots: 0,
  execsRunning: 0,
  execsWaiting: 0,
  storageLow: true,
  sandboxes: NO_SANDBOXES,
  draining: true,
};

/** The result of a job, or a refusal. */
export type Script = (job: JobEnvelope) => Promise<object>;

interface ScriptedHostOptions {
  readonly publicUrl?: string;
  /** The queue whose jobs the host answers: that of its sandboxes or that of its disks. */
  readonly queue?: 'sandbox' | 'host';
  readonly load?: Partial<HostLoad>;
}

/** A host that answers jobs as a test tells it, over the link of a real one. */
export class ScriptedHost {
  readonly hostId = newHostId();
  /** Jobs that arrived, in order. */
  readonly jobs: JobEnvelope[] = [];
  /** The answer to jobs from here on. */
  script: Script = () => Promise.resolve({});
  /** The answer to jobs from here on that it does not begin. */
  refusal: AppError | undefined;
  /** Verifies the URLs of connections that control signs for this host. */
  readonly connectionKeys: ConnectionKeys;
  readonly #links: ControlLinks;
  readonly #worker: Worker;
  readonly #stopLinking: () => void;

  private constructor(
    { environment }: Stack,
    nodes: ControlNodes,
    { publicUrl = 'http://127.0.0.1:1', queue: kind = 'sandbox', load = {} }: ScriptedHostOptions,
  ) {
    const { hostId } = this;
    const region = environment['REGION'] ?? '';
    this.connectionKeys = new ConnectionKeys({ hostId, region });
    this.#links = new ControlLinks({
      hostId,
      clusterId: environment['CLUSTER_ID'] ?? '',
      clusterSecrets: [environment['CLUSTER_SECRET'] ?? ''],
      region,
      publicUrl,
      internalUrl: 'http://127.0.0.1:2',
      log: pino({ level: 'silent' }),
      connectionKeys: this.connectionKeys,
      load: () => ({ ...LOAD, ...load }),
      onCancel: () => undefined,
      onCutOff: () => undefined,
    });
    this.#links.start();
    this.#stopLinking = repeatInBackground('test.link', LIMITS.linkHeartbeatMs, async () => {
      this.#links.linkTo(await nodes.live());
    });
    const queue = queues[kind](hostId);
    const seal = new JobSeal([environment['CLUSTER_SECRET'] ?? '']);
    const answer = ({ id = '', data }: Job): Promise<void> =>
      this.#answer(seal.open(queue, id, data));
    this.#worker = new Worker(queue, answer, {
      connection: queueConnection(
        { url: environment['REDIS_URL'] ?? '' },
        { blocking: true, prefix: '' },
      ),
      prefix: queues.prefix(hostId),
      concurrency: 100,
    });
    this.#worker.on('error', () => undefined);
  }

  /** Creates a host and waits until it is linked. */
  static async link(stack: Stack, options: ScriptedHostOptions = {}): Promise<ScriptedHost> {
    const { controlNodes } = await stack.openDirectory();
    const host = new ScriptedHost(stack, controlNodes, options);
    await waitFor('the scripted host to be linked', async () => host.#links.isConnected);
    return host;
  }

  /** Takes no job from its queue any more. */
  async stopTaking(): Promise<void> {
    await this.#worker.close(true);
  }

  /** Breaks the link. The host still takes jobs from its queue. */
  breakLink(): void {
    this.#stopLinking();
    this.#links.close();
  }

  async close(): Promise<void> {
    this.breakLink();
    await this.#worker.close(true);
  }

  async #answer(job: JobEnvelope): Promise<void> {
    const { id: jobId, replyTo } = job;
    this.jobs.push(job);
    if (this.refusal !== undefined) {
      const { code, message } = this.refusal;
      this.#links.send(replyTo, { type: 'error', jobId, code, message });
      return;
    }
    this.#links.send(replyTo, { type: 'accepted', jobId });
    try {
      const result = await this.script(job);
      this.#links.send(replyTo, { type: 'result', jobId, result, body: [] });
    } catch (error) {
      const { code, message } =
        error instanceof AppError ? error : new AppError('internal_server_error', 'script');
      this.#links.send(replyTo, { type: 'error', jobId, code, message });
    }
  }
}
