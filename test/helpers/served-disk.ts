import type { ApiClient } from './api.ts';
import type { Environment } from './daemon.ts';
import { createDisk } from './disks.ts';
import { ObjectClient, s3UrlOf } from './objects.ts';
import { Stack } from './stack.ts';

/** A stack with a disk, and its owner's clients of both interfaces. */
export interface ServedDisk {
  readonly stack: Stack;
  readonly api: ApiClient;
  readonly objects: ObjectClient;
  readonly diskId: string;
}

/** @param settings of the stack */
export async function serveDisk(settings: Environment): Promise<ServedDisk> {
  const stack = await Stack.start(settings);
  try {
    const api = await stack.newClient();
    const { id: diskId } = await createDisk(api);
    return { stack, api, diskId, objects: new ObjectClient(s3UrlOf(stack), api.key) };
  } catch (error) {
    await stack.stop();
    throw error;
  }
}
