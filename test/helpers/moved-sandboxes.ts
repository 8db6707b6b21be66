/* Sandboxes of which callers know something, and what must be so wherever they have moved. */
import { readdirSync } from 'node:fs';
import type { ExecutionContext } from 'ava';
import type { SandboxExecRecord } from '../../shared/schemas/sandbox-record.ts';
import type { MovingHost, Row } from './moving-agents.ts';
import type { MovingRegion } from './moving-region.ts';
import { waitFor } from './wait.ts';

/** A sandbox with a file on its disk, one in its memory, and a command that a caller saw end. */
export interface Known {
  readonly id: string;
  readonly said: SandboxExecRecord;
  readonly wasRunning: boolean;
}

export async function make(
  region: MovingRegion,
  host: MovingHost,
  rest?: 'pause' | 'stop',
): Promise<Known> {
  const id = await region.create(host);
  const { exec } = await host.exec(id, `echo ${id} > /root/own; echo ${id} > /run/own; echo said`);
  if (rest !== undefined) await host.ask({ call: 'act', id, action: rest });
  return { id, said: exec, wasRunning: rest === undefined };
}

/** Makes one that runs, one that is paused and one that is stopped. */
export const makeAll = async (region: MovingRegion, host: MovingHost): Promise<Known[]> => [
  await make(region, host),
  await make(region, host, 'pause'),
  await make(region, host, 'stop'),
];

const RESTS = new Set(['paused', 'stopped', 'failed', 'running']);

/**
 * Whether nothing about it changes any more: one that ran when its host was lost is started yet.
 */
export const isResting = ({ state, exitReason }: Row): boolean =>
  RESTS.has(state) && (state !== 'failed' || exitReason !== 'host_lost');

/** Waits until one host has the sandbox, callers find it there, and it is at rest or runs. */
export function rested(
  region: MovingRegion,
  id: string,
  at?: MovingHost,
): Promise<{ readonly host: MovingHost; readonly row: Row }> {
  return waitFor(`${id} at rest`, async () => {
    const [found, other] = await region.hostsOf(id);
    if (found === undefined || other !== undefined || !isResting(found.row)) return false;
    if (at !== undefined && found.host !== at) return false;
    // A sandbox that is being released has a row for a moment longer.
    const places = region.placesOf(found.row.vmId);
    if (places.length !== 1 || places[0] !== `hosts/${found.host.hostId}`) return false;
    if ((await region.hostOf(id)) !== found.host.hostId) return false;
    return (await isFound(found.host, id)) && found;
  });
}

async function isFound(host: MovingHost, id: string): Promise<boolean> {
  try {
    return await host.attempt({ call: 'execs', id });
  } catch (error) {
    if ((error as { code?: string }).code === 'unavailable') return false;
    throw error;
  }
}

/** The sandbox is at that host alone, truthfully, with everything; then it is deleted. */
export async function check(
  t: ExecutionContext,
  region: MovingRegion,
  known: Known,
  at: MovingHost,
): Promise<void> {
  const { id, said, wasRunning } = known;
  const { row } = await rested(region, id, at);
  const entries = readdirSync(region.directoryOf(at, row.vmId));
  t.is(
    entries.filter((name) => name.endsWith('.ext4')).length,
    1,
    'a link to the image of its disk',
  );
  t.is(row.isRunning, row.state === 'running');
  if (!wasRunning) t.true(['paused', 'stopped'].includes(row.state), row.state);
  else if (row.state !== 'paused')
    t.true(['vmm_crashed', 'host_lost'].includes(row.exitReason ?? ''), JSON.stringify(row));
  const execs = await at.ask<SandboxExecRecord[]>({ call: 'execs', id });
  t.deepEqual(
    execs.find((exec) => exec.id === said.id),
    said,
  );
  const action = row.state === 'paused' ? 'resume' : 'start';
  if (row.state !== 'running') await at.ask({ call: 'act', id, action });
  const files = row.state === 'paused' ? '/root/own /run/own' : '/root/own';
  const { stdout } = await at.exec(id, `cat ${files}`);
  t.is(
    stdout,
    files
      .split(' ')
      .map(() => `${id}\n`)
      .join(''),
  );
  await remove(at, id);
}

export async function remove(host: MovingHost, id: string): Promise<void> {
  await host.ask({ call: 'act', id, action: 'stop' });
  await host.ask({ call: 'delete', id });
}

/** Has a host work as ever, whatever was done to it. */
export async function upAgain(region: MovingRegion, host: MovingHost): Promise<void> {
  if (!(await host.attempt({ call: 'arm', armed: undefined }))) await host.start();
  await region.order(host, 'up');
  await region.follows(host, 'up');
}

/** All hosts are up, and nothing is left of any sandbox. */
export async function checkNothingLeft(t: ExecutionContext, region: MovingRegion): Promise<void> {
  for (const host of region.hosts) await upAgain(region, host);
  let left: string[] = [];
  const isEmpty = async (): Promise<boolean> => (left = await region.leftovers()).length === 0;
  await waitFor('nothing to be left', isEmpty).catch(() => undefined);
  t.deepEqual(left, []);
  t.is(await region.faults(), '');
}
