/*
 * The driver of virtual machines does what every driver does, and confines, bounds and describes
 * its machines. Each test has a machine of its own but those that only look.
 */
import assert from 'node:assert';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import anyTest, { type TestFn } from 'ava';
import { BootError, type Machine, type MachineSpec } from '../../agent/machines/driver.ts';
import { GuestChannel } from '../../agent/machines/guest-link/guest-channel.ts';
import { connectSocket } from '../../agent/machines/shim/connect-socket.ts';
import type { MicrovmDriver } from '../../agent/machines/qemu/microvm-driver.ts';
import { run } from '../../agent/system/spawn.ts';
import { identify } from '../../shared/process-id.ts';
import { begin, boot, erase, MachineHost, outputOf, prioritiesIn } from '../helpers/machines.ts';
import { waitFor } from '../helpers/wait.ts';
import { testImages } from './images.ts';
import { type DriverContext, ownSpec, testLifecycle, turns } from './lifecycle.ts';
import { MiB } from '../../shared/units.ts';

interface Context {
  host: MachineHost;
  driver: MicrovmDriver;
  /** A machine that runs, for tests that leave it as it is. */
  spec: MachineSpec;
  machine: Machine;
}

const test = anyTest as TestFn<Context>;
const GRACE_MS = 10_000;
const never = new AbortController().signal;

let shared: Context | undefined;

test.before(async () => {
  const host = await MachineHost.open();
  const driver = await host.driver({ hasTemplates: true });
  const spec = await host.newSpec();
  shared = { host, driver, spec, machine: await boot(driver, spec) };
});

test.beforeEach((t) => {
  assert(shared !== undefined);
  t.context = shared;
});

test.after.always(async () => {
  await shared?.host[Symbol.asyncDispose]();
});

test('a guest has the memory, processors, priority and disk that it was given', async (t) => {
  const { machine } = t.context;
  t.is(await outputOf(machine, 'nproc'), '1');
  t.is(await prioritiesIn(machine), '0 -20');
  const memory = Number(await outputOf(machine, "awk '/MemTotal/ {print $2}' /proc/meminfo"));
  t.true(memory > 200 * 1024 && memory < 256 * 1024);
  t.is(
    await outputOf(machine, "df --output=source,fstype / | tail -1 | tr -s ' '"),
    '/dev/vda ext4',
  );
  const size = Number(await outputOf(machine, 'df --output=size -B1G / | tail -1'));
  t.true(size >= 30 && size <= 32);
});

test('a machine for which there is no template boots', async (t) => {
  const driver = await t.context.host.driver({ hasTemplates: false });
  const spec = await ownSpec(t);
  const machine = await boot(driver, spec);
  t.is(await outputOf(machine, 'hostname'), spec.settings.hostname);
  await machine.kill();
  await erase(driver, spec.vmId);
});

test('a guest has the network of its slot', async (t) => {
  const { machine, spec } = t.context;
  t.is(await outputOf(machine, 'cat /sys/class/net/eth0/address'), spec.slot.guestMac);
  // The command's result does not matter, since something was sent.
  await outputOf(machine, `timeout 60 bash -c '>/dev/tcp/${spec.slot.gatewayAddress}/9' || true`);
  const { namespace, tap } = spec.slot;
  const link = await run('ip', ['-n', namespace, '-j', '-s', 'link', 'show', tap]);
  const [{ stats64 }] = JSON.parse(link) as [{ stats64: { rx: { packets: number } } }];
  t.true(stats64.rx.packets > 0);
});

test('a guest has the clock of its host', async (t) => {
  const seconds = Number(await outputOf(t.context.machine, 'date +%s'));
  t.true(Math.abs(seconds - Date.now() / 1000) < 60);
});

test('a machine ends with its shim', async (t) => {
  const { driver, host } = t.context;
  const spec = await ownSpec(t);
  const machine = await boot(driver, spec);
  const { machine: pid, keeper } = await host.processes(spec.vmId);
  process.kill(keeper, 'SIGKILL');
  t.like(await machine.ended, { reason: 'vmm_crashed' });
  t.is(identify(pid), undefined);
});

test('a machine that the host killed for want of memory is not reported as crashed', async (t) => {
  const { driver, host } = t.context;
  const spec = await ownSpec(t);
  const machine = await boot(driver, spec);
  await host.leaveMemory(spec.vmId, MiB);
  // The machine may end before the answer.
  await begin(machine, 'head -c 150M /dev/zero | tail').catch(() => undefined);
  t.like(await machine.ended, { reason: 'out_of_memory' });
});

test('a machine outlives its agent, and the next agent takes it over', async (t) => {
  const { host } = t.context;
  const spec = await ownSpec(t);
  const fixture = new URL('../fixtures/run-machine.ts', import.meta.url).pathname;
  const args = [fixture, host.dataDir, host.hostId, JSON.stringify(spec)];
  const agent = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  await once(agent.stdout, 'data');
  agent.kill('SIGKILL');
  await once(agent, 'exit');

  const driver = await host.driver();
  const machine = await driver.recover(spec);
  assert('ended' in machine, JSON.stringify(machine));
  const ticks = async (): Promise<number> => Number(await outputOf(machine, 'wc -l < /root/ticks'));
  const before = await ticks();
  await waitFor('the guest to go on', async () => (await ticks()) > before);
  t.is(machine.guest.processes.length > 0, true);
  t.like(await machine.stop(GRACE_MS), { reason: 'stopped' });
  await erase(driver, spec.vmId);
});

test('a guest answers every host that follows another', async (t) => {
  const { driver, host } = t.context;
  const spec = await ownSpec(t);
  const machine = await boot(driver, spec);
  machine.detach();
  for (let turn = 0; turn < 10; turn++) {
    const socket = connectSocket(join(host.runDir(spec.vmId), 'guest'));
    const { channel } = await GuestChannel.open(socket);
    await t.notThrowsAsync(channel.ping());
    channel.close();
    await sleep(200); // So that the guest has seen its host go.
  }
});

test('a failed boot names its cause', async (t) => {
  const { driver, host } = t.context;
  const spec = await ownSpec(t);
  const slot = { ...spec.slot, tap: 'no-such-tap' };
  const noTap = await t.throwsAsync(boot(driver, { ...spec, slot }), { instanceOf: BootError });
  t.is(noTap.reason, 'boot_failed');
  t.regex(noTap.message, /tap/u);

  const disk = join(host.runDir(spec.vmId), '../disks/root.qcow2');
  await writeFile(disk, 'no disk');
  const noDisk = await t.throwsAsync(driver.start(spec, never), { instanceOf: BootError });
  t.is(noDisk.reason, 'boot_failed');
  t.regex(noDisk.message, /qcow2/u);
  await driver.reclaim(spec.vmId);
  t.deepEqual(await host.leftOf(spec.vmId), []);
});

test('a root disk without a file system is named as the cause', async (t) => {
  const { host } = t.context;
  const spec = await ownSpec(t);
  const rootDisk = join(host.dataDir, 'empty-disk');
  await writeFile(rootDisk, '', { mode: 0o644 });
  await run('truncate', ['--size', '1G', rootDisk]);
  const driver = await host.driver({ rootDisk });
  const error = await t.throwsAsync(boot(driver, spec), { instanceOf: BootError });
  t.is(error.reason, 'boot_failed');
  t.regex(error.message, /root/u);
});

test('a guest that floods its console fills no disk, and still answers', async (t) => {
  const { driver, host } = t.context;
  const spec = await ownSpec(t);
  const machine = await boot(driver, spec);
  await begin(machine, 'exec yes flood-flood-flood-flood-flood > /dev/ttyS0');
  await waitFor('the log to turn over', () =>
    stat(join(host.runDir(spec.vmId), 'console.log.1')).catch(() => undefined),
  );
  t.is(await outputOf(machine, 'echo here'), 'here');
  for (const name of ['console.log', 'console.log.1']) {
    t.true((await stat(join(host.runDir(spec.vmId), name))).size <= 512 * 1024);
  }
  await machine.kill();
});

test('a machine waits while its host has no free space, and continues once there is some', async (t) => {
  await using full = await MachineHost.open({ sizeBytes: 48 * MiB });
  const turn = await turns.acquire('', never);
  t.teardown(() => turn.release());
  const driver = await full.driver();
  const spec = await full.newSpec();
  const machine = await boot(driver, spec);
  const writing = await begin(machine, 'head -c 100M /dev/urandom > /root/file && sync /root/file');
  await waitFor('the host to be full', async () => (await full.freeBytes()) < MiB);
  await sleep(1000);
  t.is(writing.exit, undefined);
  await full.resize(400 * MiB);
  t.is((await writing.ended()).exit?.exitCode, 0);
  t.is(await outputOf(machine, 'stat -c %s /root/file'), String(100 * MiB));
  await machine.kill();
});

test('a machine has an unprivileged user, an empty view of the host, and no way to gain rights', async (t) => {
  const { host, spec } = t.context;
  const { machine } = await host.processes(spec.vmId);
  const proc = `/proc/${machine}`;
  const status = await readFile(join(proc, 'status'), 'utf8');
  const field = (name: string): string =>
    new RegExp(`^${name}:[\t ]*(.*)$`, 'mu').exec(status)?.[1]?.trim() ?? '';
  t.deepEqual(
    field('Uid').split(/\s+/u),
    Array.from({ length: 4 }, () => String(spec.uid)),
  );
  t.deepEqual(
    field('Gid').split(/\s+/u),
    Array.from({ length: 4 }, () => String(spec.uid)),
  );
  t.is(field('Groups'), '');
  for (const name of ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']) {
    t.regex(field(name), /^0+$/u, name);
  }
  t.is(field('NoNewPrivs'), '1');
  t.is(field('Seccomp'), '2');
  t.regex(field('NSpid'), /\s1$/u);
  for (const name of ['mnt', 'net', 'pid', 'ipc', 'uts', 'cgroup']) {
    const namespaces = [`${proc}/ns/${name}`, `/proc/self/ns/${name}`];
    const [theirs, ours] = await Promise.all(namespaces.map((path) => stat(path)));
    t.not(theirs?.ino, ours?.ino, name);
  }
});

test('the root of a machine holds programs, its devices and its disks', async (t) => {
  const { host, spec } = t.context;
  const root = `/proc/${(await host.processes(spec.vmId)).machine}/root`;
  const names = (await readdir(root)).filter((name) => !name.startsWith('lib'));
  t.deepEqual(names.toSorted(), [
    ...['base', 'dev', 'disks', 'etc', 'guest', 'preload.so', 'proc', 'usr'],
  ]);
  t.deepEqual((await readdir(join(root, 'dev'))).toSorted(), ['null', 'urandom']);
  t.deepEqual(await readdir(join(root, 'disks')), ['root.qcow2']);
  t.deepEqual(await readdir(join(root, 'etc')), ['ld.so.cache']);
  const mounts = await readFile(join(root, '../mounts'), 'utf8');
  for (const line of mounts.trim().split('\n')) {
    const [, target = '', , options = ''] = line.split(' ');
    const flags = options.split(',');
    t.true(flags.includes('nosuid'), line);
    t.is(flags.includes('rw'), ['/disks', '/proc'].includes(target), line);
  }
});

test('a machine has only the descriptors that it needs', async (t) => {
  const { host, spec } = t.context;
  const { machine, keeper } = await host.processes(spec.vmId);
  const list = await run('ls', ['-l', `/proc/${machine}/fd`]);
  const targets = [...list.matchAll(/-> (\S+)/gu)].map(([, target = '']) => target);
  // The lock is what says to other hosts that the machine lives.
  const known =
    /^(?:\/dev\/null|pipe:|socket:|anon_inode:|\/dev\/net\/tun|\/base\/root|\/disks\/root|\/memfd:berth-|\S+\/lock$)/u;
  t.deepEqual(
    targets.filter((target) => !known.test(target)),
    [],
  );
  t.true((await readdir(`/proc/${keeper}/fd`)).length <= 8);
});

test('a machine is bounded in memory, processes and processors', async (t) => {
  const { host, spec } = t.context;
  const limits = await host.limits(spec.vmId);
  const ram = spec.memSizeMib * MiB;
  t.true(limits.memoryBytes > ram && limits.memoryBytes < ram + 512 * MiB);
  t.true(limits.processes >= 64 && limits.processes <= 256);
  t.is(limits.cpus, 1.5);
});

testLifecycle(anyTest as TestFn<DriverContext>);
testImages(anyTest as TestFn<DriverContext>);
