import { readFile } from 'node:fs/promises';
import type { ApiClient } from './api.ts';
import { outputOf } from './sandboxes.ts';

/** Puts a Python program of the fixtures into a sandbox, at `/tmp`. */
export async function putProgram(api: ApiClient, id: string, name: string): Promise<string> {
  const text = await readFile(new URL(`../fixtures/${name}`, import.meta.url), 'base64');
  await outputOf(api, id, `echo ${text} | base64 -d > /tmp/${name}`);
  return `python3 /tmp/${name}`;
}

/** The address as which a sandbox's request is seen that it sends to a name of the outside. */
export async function seenAs(api: ApiClient, id: string): Promise<string> {
  const answer = await outputOf(api, id, 'curl -sS --max-time 20 http://outside.test/');
  return (JSON.parse(answer) as { client: string }).client;
}

/** Whether a sandbox reaches each of these addresses with their ports; see tcp-probe.py. */
export async function probeFrom(
  api: ApiClient,
  id: string,
  targets: readonly string[],
): Promise<string[]> {
  const probe = await putProgram(api, id, 'tcp-probe.py');
  return (await outputOf(api, id, `${probe} ${targets.join(' ')}`)).trim().split('\n');
}
