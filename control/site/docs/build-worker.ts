/* Makes the documentation beside the thread that answers requests. */
import { parentPort, workerData } from 'node:worker_threads';
import type { Description } from './reference.ts';
import { buildSite } from './site.ts';

// oxlint-disable-next-line unicorn/require-post-message-target-origin -- a port has no origin
parentPort?.postMessage(await buildSite(workerData as Description));
