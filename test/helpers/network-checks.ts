import { readFile } from 'node:fs/promises';
import type { ExecutionContext } from 'ava';
import type { ApiClient } from './api.ts';
import { bring, createSandbox, forkSandbox, outputOf, removeSandbox } from './sandboxes.ts';

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

/** Asserts that a sandbox and its fork have a network after every action that starts a machine. */
export async function keepsNetwork(
  t: ExecutionContext,
  api: ApiClient,
  expected: string,
): Promise<void> {
  const { sandbox_id: id } = await createSandbox(api);
  t.is(await seenAs(api, id), expected);
  await bring(api, id, 'pause', 'paused');
  await bring(api, id, 'resume', 'running');
  t.is(await seenAs(api, id), expected);
  const { sandbox_id: child } = await forkSandbox(api, id);
  t.deepEqual(await Promise.all([seenAs(api, id), seenAs(api, child)]), [expected, expected]);
  await bring(api, id, 'stop', 'stopped');
  await bring(api, id, 'start', 'running');
  t.is(await seenAs(api, id), expected);
  await removeSandbox(api, child);
  await removeSandbox(api, id);
}

/**
 * Asserts that a connection ends at once, with an error, when its sandbox has been resumed or is a
 * copy, and that both reach the addresses which they knew by an allowed name.
 * @param name the server that echoes at port 7000; the sandbox may reach nothing else
 */
export async function keepsAddresses(
  t: ExecutionContext,
  api: ApiClient,
  name: string,
  { copiesMemory }: { readonly copiesMemory: boolean },
): Promise<void> {
  const network = { egress: { default: 'deny', allow: [name] } };
  const { sandbox_id: id } = await createSandbox(api, { network });
  const program = await putProgram(api, id, 'over-pause.py');
  const begin = `setsid ${program} ${name} 7000 /tmp/go >/tmp/log 2>&1 &`;
  await outputOf(api, id, `${begin} until grep -q . /tmp/log; do sleep 0.1; done`);
  const { sandbox_id: child } = await forkSandbox(api, id);
  await bring(api, id, 'pause', 'paused');
  await bring(api, id, 'resume', 'running');
  const end =
    'touch /tmp/go; until [ $(wc -l </tmp/log) -gt 1 ]; do sleep 0.1; done; tail -1 /tmp/log';
  for (const each of copiesMemory ? [id, child] : [id]) {
    const told = (await outputOf(api, each, end)).trim();
    t.regex(told, /^ECONN(?:RESET|ABORTED) answered$/u, each === id ? 'after a resume' : 'a copy');
  }
  await removeSandbox(api, child);
  await removeSandbox(api, id);
}
