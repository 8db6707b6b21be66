/* Invariants after each recovery, and others for when nothing is under way. */
import { readdir } from 'node:fs/promises';
import { dueAt, type RunTimes } from '../../agent/sandboxes/lifecycle/time-limits.ts';
import { paths } from '../../agent/system/paths.ts';
import type { SandboxExecState, SandboxRow } from '../../agent/system/journal/sandbox-journal.ts';
import { SandboxCapacity } from '../../shared/directory/capacity.ts';
import { Sandboxes } from '../../shared/directory/sandboxes.ts';
import { isTransitional } from '../../shared/sandbox-lifecycle.ts';
import { needOf } from '../../shared/directory/sandbox-need.ts';
import type { Known } from './ledger.ts';
import { HOST_ID, REGION, SLOTS } from './simulated-agent.ts';
import { checkSnapshots, checkSnapshotsAtRest, snapshotRows } from './snapshots.ts';
import { DIGEST } from '../helpers/in-memory-images.ts';
import type { World } from './world.ts';

const same = (one: Iterable<string | number>, two: Iterable<string | number>): boolean =>
  JSON.stringify([...one].map(String).toSorted()) ===
  JSON.stringify([...two].map(String).toSorted());

/** Everything that callers were told still holds. */
export async function checkNow(world: World): Promise<void> {
  const { ledger, agent, time } = world;
  await checkSnapshots(world);
  for (const known of ledger.sandboxes.values()) {
    const row = world.rowOf(known.id);
    if (known.fate === 'gone') {
      if (row !== undefined) ledger.broken.push(`${known.id}: was deleted, and is there`);
      continue;
    }
    if (row === undefined) {
      if (known.fate === 'there') ledger.broken.push(`${known.id}: was acknowledged, and is gone`);
      else if (!world.waiting.size) known.fate = 'gone';
      continue;
    }
    if (!world.waiting.size) Object.assign(known, { fate: 'there', ends: 0, isEnding: false });
    ledger.checkRow(known, row);
    checkWritten(world, known, row);
    for (const [id, seen] of known.ended) {
      const kept = await time.wait(agent.parts.journal.sandboxes.exec(known.id, id));
      if (kept !== undefined && kept.status === seen.status && kept.exitCode === seen.exitCode)
        continue;
      ledger.broken.push(`command ${id}: was ${seen.status}, and is ${kept?.status ?? 'unknown'}`);
    }
  }
}

function checkWritten({ host, ledger }: World, known: Known, row: SandboxRow): void {
  const { vmId, bootId, state } = row;
  for (const { path, text, bootId: writtenIn } of known.written) {
    if (!path.startsWith('/run/')) {
      if (host.readFile(vmId, path) !== text) ledger.broken.push(`${known.id}: lost ${path}`);
      continue;
    }
    const kept =
      state === 'running'
        ? host.vms.get(vmId)?.guest.memory
        : state === 'paused'
          ? host.wholeCheckpoint(vmId)?.memory.memory
          : undefined;
    if (kept === undefined || writtenIn !== bootId) continue;
    if (kept.get(path) !== text) ledger.broken.push(`${known.id}: forgot ${path}`);
  }
}

/**
 * The agent holds of its host exactly the needs of its sandboxes: nothing was forgotten on the way.
 */
export async function checkHeld(world: World): Promise<void> {
  const { agent, host, time } = world;
  await checkNow(world);
  const { journal, uids, slots, capacity, registry } = agent.parts;
  const rows = await time.wait(journal.sandboxes.list());
  const snapshots = await snapshotRows(world);
  const kept = snapshots.filter(({ state }) => state === 'ready').map(({ id }) => id);
  const owned = new Set([...rows.map(({ vmId }) => vmId), ...kept]);
  // Prewarmed machines, and what could not be removed: the next agent does that.
  const others = host.list().filter((id) => !owned.has(id));
  const uidOf = (id: string): number => (host.vms.get(id) ?? host.disks.get(id))?.uid ?? 0;
  const expect = expectation(world);
  expect('sandboxes', [registry.states.size], [rows.length]);
  const foreign = others.filter((id) => !snapshots.some((snapshot) => snapshot.id === id));
  expect('users', uids.taken, [
    ...[...rows, ...snapshots].map(({ uid }) => uid),
    ...foreign.map(uidOf),
  ]);
  const withSlot = rows.filter(({ slot }) => slot !== undefined);
  const free = SLOTS - withSlot.length;
  const prewarmed = others.filter((id) => host.vms.get(id)?.isRunning === true);
  const slotsMin = free - others.length;
  const isRight = slots.freeCount >= slotsMin && slots.freeCount <= free - prewarmed.length;
  expect('free slots', [slots.freeCount], isRight ? [slots.freeCount] : [slotsMin]);
  const needs = withSlot.map(({ config }) => needOf(config));
  const memoryMib = needs.reduce((sum, need) => sum + need.memoryMib, 0);
  expect('memory held', [capacity.load.memoryMibUsed], [memoryMib]);
  checkMachines(world, rows);
  for (const row of rows) await checkExecs(world, row);
}

type Expect = (what: string, is: Iterable<string | number>, be: Iterable<string | number>) => void;

const expectation =
  ({ ledger }: World): Expect =>
  (what, is, be) => {
    if (same(is, be)) return;
    ledger.broken.push(`${what}: [${[...is].join()}] instead of [${[...be].join()}]`);
  };

/** Machines, checkpoints and limits are as the rows say. */
function checkMachines(world: World, rows: readonly SandboxRow[]): void {
  const { host } = world;
  const expect = expectation(world);
  const owned = new Set(rows.map(({ vmId }) => vmId));
  const isOwned = ({ id }: { readonly id: string }): boolean => owned.has(id);
  const running = rows.filter(({ state }) => state === 'running');
  expect(
    'machines',
    host.running.filter(isOwned).map((vm) => `${vm.id} ${vm.slot} ${vm.uid}`),
    running.map(({ vmId, slot, uid }) => `${vmId} ${slot} ${uid}`),
  );
  expect(
    'slots held',
    rows.filter(({ slot }) => slot !== undefined).map(({ id }) => id),
    running.map(({ id }) => id),
  );
  expect(
    'checkpoints',
    [...host.checkpoints].flatMap(([id, { isWhole }]) => (isWhole && owned.has(id) ? [id] : [])),
    rows.filter(({ state }) => state === 'paused').map(({ vmId }) => vmId),
  );
}

/** Nothing is left over, nothing is shared, and all copies agree. */
export async function checkAtRest(world: World): Promise<void> {
  const { ledger, agent, host, time } = world;
  await checkHeld(world);
  const { journal, uids } = agent.parts;
  const rows = await time.wait(journal.sandboxes.list());
  await checkSnapshotsAtRest(world);
  const snapshots = await snapshotRows(world);
  const kept = snapshots.filter(({ state }) => state === 'ready').map(({ id }) => id);
  const expect = expectation(world);
  const withSlot = rows.filter(({ slot }) => slot !== undefined);
  expect(
    'what is on the host',
    host.list(),
    [...rows.map(({ vmId }) => vmId), ...kept].filter((id) => host.list().includes(id)),
  );
  expect(
    'users',
    uids.taken,
    [...rows, ...snapshots].map(({ uid }) => uid),
  );
  const unused = [...world.namespaces].filter(
    (index) => !withSlot.some(({ slot }) => slot === index),
  );
  if (unused.length > 1) ledger.broken.push(`slots: ${unused.join()} are nobody's`);
  const tops = [...host.disks.values()].map(({ layers }) => layers.at(-1));
  if (new Set(tops).size < tops.length)
    ledger.broken.push('two disks share a layer that is written');
  await checkDirectories(world, rows);
  const ready = snapshots.filter(({ state }) => state === 'ready');
  const onImage = [...rows, ...ready].filter(({ image }) => image?.digest !== undefined);
  const held = world.images.holds.get(DIGEST) ?? 0;
  const has = onImage.length === 0 || world.images.present.has(DIGEST);
  if (has && held !== onImage.length)
    ledger.broken.push(`${held} hold the image, ${onImage.length} stand on it`);
  const known = ledger.present.filter(({ fate }) => fate === 'there').map(({ id }) => id);
  const lost = known.filter((id) => !rows.some((row) => row.id === id));
  if (lost.length > 0) ledger.broken.push(`rows lost: ${lost.join()}`);
}

/** Exactly the commands whose records say `running` do run. */
async function checkExecs(world: World, row: SandboxRow): Promise<void> {
  const { ledger, host, time, agent } = world;
  const rows: SandboxExecState[] = await time.wait(
    agent.parts.journal.sandboxes.runningExecs(row.id),
  );
  const processes = row.state === 'running' ? (host.vms.get(row.vmId)?.guest.running ?? []) : [];
  for (const { id } of rows) {
    if (processes.some((process) => process.id === id)) continue;
    ledger.broken.push(`command ${id} of ${row.id} (${row.state}) is said to run`);
  }
  for (const { id } of processes) {
    const kept = await time.wait(agent.parts.journal.sandboxes.exec(row.id, id));
    // The record of the sandbox that it was forked from.
    if (kept === undefined || kept.status === 'running') continue;
    ledger.broken.push(`command ${id} of ${row.id} runs and is said to be ${kept.status}`);
  }
}

async function checkDirectories(world: World, rows: readonly SandboxRow[]): Promise<void> {
  const { ledger, redis, time, directory } = world;
  const sandboxes = new Sandboxes(redis, REGION);
  const accounts = [...new Set([...ledger.sandboxes.values()].map(({ accountId }) => accountId))];
  const lists = await time.wait(Promise.all(accounts.map((account) => sandboxes.list(account))));
  const shown = lists.flat().map(({ id, revision, state }) => `${id} ${revision} ${state}`);
  const be = rows.map(({ id, revision, state }) => `${id} ${revision} ${state}`);
  if (!same(shown, be))
    ledger.broken.push(`the directory shows ${shown.join()} instead of ${be.join()}`);
  const used = await time.wait(new SandboxCapacity(redis).used(HOST_ID));
  const needs = rows.filter(({ slot }) => slot !== undefined).map(({ config }) => needOf(config));
  const memoryMib = needs.reduce((sum, need) => sum + need.memoryMib, 0);
  if (used.memoryMib !== memoryMib) {
    ledger.broken.push(`the directory counts ${used.memoryMib} MiB instead of ${memoryMib}`);
  }
  const outputs = await readdir(paths.sandboxOutput(directory, '.')).catch(() => []);
  const left = outputs.filter((name) => !rows.some(({ id }) => id === name));
  if (left.length > 0) ledger.broken.push(`output of commands is left of ${left.join()}`);
}

const timesOf = ({ expiresAt, idleSince, config }: SandboxRow): RunTimes => ({
  ...{ expiresAt, idleSince, idleTtlSeconds: config.idleTtlSeconds },
});

/** Work that is still under way. */
export function restlessOf(world: World): string[] {
  const { agent, ledger, waiting, schedule, time } = world;
  if (!agent.isReady) return ['the agent has not recovered'];
  const moving = ledger.present.flatMap(({ id }) => {
    const row = world.rowOf(id);
    if (row === undefined) return [];
    if (isTransitional(row.state)) return [`${id} ${row.state}`];
    const isDue = row.state === 'running' && dueAt(timesOf(row)) <= time.monotonicMs;
    return isDue ? [`${id} beyond its limit`] : [];
  });
  return [...moving, ...waiting, ...(schedule.size > 0 ? [`${schedule.size} events`] : [])];
}
