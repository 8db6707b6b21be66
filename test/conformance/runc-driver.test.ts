/* The driver of containers does what every driver does, and confines and bounds its containers. */
import assert from 'node:assert';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { readFile, readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import { GuestChannel } from '../../agent/machines/guest-link/guest-channel.ts';
import { connectSocket } from '../../agent/machines/shim/connect-socket.ts';
import { copyRunning } from '../../agent/machines/runc/fork-container.ts';
import { RuncMachine } from '../../agent/machines/runc/runc-machine.ts';
import { run } from '../../agent/system/spawn.ts';
import { MiB } from '../../shared/units.ts';
import { begin, boot, outputOf, prioritiesIn } from '../helpers/machines.ts';
import { FIRST_ID, RuncMachines } from '../helpers/runc-machines.ts';
import { testImages } from './images.ts';
import { type DriverContext, ownSpec, testLifecycle } from './lifecycle.ts';
import { testMemory } from './memory.ts';
import { testProcessConnections } from './process-connections.ts';

const test = anyTest as TestFn<DriverContext>;

let host: RuncMachines;

test.before(async () => {
  host = await RuncMachines.open();
});

test.beforeEach(async (t) => {
  t.context = { host, driver: await host.driver() };
});

test.after.always(async () => {
  await host[Symbol.asyncDispose]();
});

test('a container has its own users, namespaces and root, and few rights', async (t) => {
  const spec = await ownSpec(t);
  const machine = await boot(t.context.driver, spec);
  const proc = `/proc/${await host.pid(spec.vmId)}`;
  const status = await readFile(join(proc, 'status'), 'utf8');
  const field = (name: string): string =>
    new RegExp(`^${name}:[\t ]*(.*)$`, 'mu').exec(status)?.[1]?.trim() ?? '';
  t.true(Number(field('Uid').split(/\s+/u)[0]) >= FIRST_ID);
  t.is(field('Groups'), '');
  t.is(field('NoNewPrivs'), '1');
  t.is(field('Seccomp'), '2');
  t.is(BigInt(`0x${field('CapBnd')}`) & (1n << 21n), 0n, 'CAP_SYS_ADMIN');
  for (const name of ['mnt', 'net', 'pid', 'ipc', 'uts', 'user', 'cgroup']) {
    const both = [`${proc}/ns/${name}`, `/proc/self/ns/${name}`].map((path) => stat(path));
    const [theirs, ours] = await Promise.all(both);
    t.not(theirs?.ino, ours?.ino, name);
  }
  const mounts = await readFile('/proc/self/mountinfo', 'utf8');
  t.false(mounts.includes(spec.vmId));
  // The guest finds no directory of the host and no name of its socket.
  const inside = await outputOf(machine, 'cut -d" " -f2 /proc/mounts; ls /run /run/berth /.berth');
  t.false(inside.includes(host.dataDir));
  t.regex(inside, /\/run:\nberth\n\n\/run\/berth:\nboot-id\ngeneration$/mu);
  for (const command of [
    'mount -t tmpfs none /mnt',
    'unshare --user true',
    'echo x > /proc/sys/kernel/hostname',
    'hostname other',
    'mknod /tmp/disk b 7 0',
    'echo x > /.berth/guest',
    'head -c 1 /proc/kcore | grep -q .',
    'ls -A /sys/block | grep -q .',
  ]) {
    const refused = await (await begin(machine, command)).ended();
    t.not(refused.exit?.exitCode, 0, command);
  }
});

test('a container has another generation after each start, which others than root only read', async (t) => {
  const { driver } = t.context;
  const spec = await ownSpec(t);
  const seen = new Set<string>();
  for (const bootId of [randomUUID(), randomUUID()]) {
    const machine = await boot(driver, { ...spec, settings: { ...spec.settings, bootId } });
    seen.add(await outputOf(machine, 'cat /run/berth/generation'));
    const command = 'setpriv --reuid 1000 --clear-groups sh -c "echo x > /run/berth/generation"';
    t.not((await (await begin(machine, command)).ended()).exit?.exitCode, 0);
    t.is(await outputOf(machine, 'stat -c %a:%u /run/berth/generation'), '644:0');
    await machine.stop(10_000);
    await driver.reclaim(spec.vmId);
  }
  t.is(seen.size, 2);
});

test('a container is bounded in memory, processes and processors, and answers first', async (t) => {
  const spec = await ownSpec(t);
  const machine = await boot(t.context.driver, spec);
  const limits = await host.limits(spec.vmId);
  t.deepEqual(limits, { memoryBytes: spec.memSizeMib * MiB, processes: 2048, cpus: 1 });
  t.is(await prioritiesIn(machine), '0 -20');
});

test('a new connection of the host replaces one that was not closed', async (t) => {
  const spec = await ownSpec(t);
  const machine = await boot(t.context.driver, spec);
  machine.detach();
  const open = async (): Promise<GuestChannel> => {
    const socket = connectSocket(join(host.runDir(spec.vmId), 'guest'));
    await once(socket, 'connect');
    return (await GuestChannel.open(socket)).channel;
  };
  const first = await open();
  const closed = once(first, 'closed');
  const second = await open();
  await closed;
  await second.ping();
  second.close();
  const third = await open();
  await t.notThrowsAsync(third.ping());
  third.close();
});

test('a deleted sandbox leaves no file, loop device or group', async (t) => {
  const { driver } = t.context;
  const spec = await ownSpec(t);
  await boot(driver, spec);
  await driver.pause(spec.vmId);
  await driver.remove(spec.vmId);
  t.deepEqual(await host.leftOf(spec.vmId), []);
  t.false((await driver.list()).includes(spec.vmId));
  const blocks = (await readdir('/sys/block')).filter((name) => name.startsWith('loop'));
  const files = blocks.map((name) =>
    readFile(join('/sys/block', name, 'loop/backing_file'), 'utf8').catch(() => ''),
  );
  t.false((await Promise.all(files)).some((file) => file.includes(spec.vmId)));
});

test('a source runs on before its copy is durable, and after one that is late', async (t) => {
  const { driver } = t.context;
  const [spec, child] = [await ownSpec(t), await ownSpec(t)];
  const machine = await boot(driver, spec);
  const isShown: boolean[] = [];
  const disk = join(host.runDir(child.vmId), '../disk/upper.ext4');
  await driver.fork(spec.vmId, child, () => isShown.push(existsSync(disk)));
  t.deepEqual(isShown, [false]);
  t.true(existsSync(disk));
  assert(machine instanceof RuncMachine);
  // Nobody writes to it, so that its copy never ends.
  const from = join(host.dataDir, 'endless');
  await run('mkfifo', [from]);
  const copying = copyRunning(machine, { from, to: join(host.dataDir, 'copy') }, 1_000);
  await t.throwsAsync(copying, { code: 'unavailable' });
  t.is(await outputOf(machine, 'echo runs'), 'runs');
  await machine.kill();
});

testLifecycle(test);
testImages(test);
testMemory(test);
testProcessConnections(test);
