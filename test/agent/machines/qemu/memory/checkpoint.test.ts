/*
 * Real guests that go on from memory: from a template, from a checkpoint, beside the one that they
 * are copies of. What is in their memory is summed up inside, before and after.
 */
import { closeSync, fstatSync } from 'node:fs';
import { cp, mkdir, readFile, stat, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { MountFlag, native, UnmountFlag } from '../../../../../agent/native/native.ts';
import {
  CheckpointError,
  discardCheckpoint,
  saveRunningCheckpoint,
  invalidateCheckpoint,
  saveCheckpoint,
  restoreCheckpoint,
  restoreTemplate,
  templateOf,
} from '../../../../../agent/machines/qemu/memory/checkpoint.ts';
import {
  continueMachine,
  MachineStateError,
} from '../../../../../agent/machines/qemu/memory/machine-state.ts';
import {
  newTemplateRam,
  saveTemplate,
  Template,
  TemplateError,
  templateKey,
  type TemplateParts,
} from '../../../../../agent/machines/qemu/memory/template.ts';
import { MachineRoom, type TestMachine } from '../../../../helpers/restorable-machines.ts';
import { MiB } from '../../../../../shared/units.ts';

const memSizeMib = 256;
const PARTS: TemplateParts = {
  qemuVersion: 'as installed',
  guestKey: 'as built',
  accelerator: 'tcg',
  processor: '',
  vcpuCount: 1,
  memSizeMib,
  arguments: [],
};
const KEY = templateKey(PARTS);

const room = await MachineRoom.open();
test.after.always(() => room[Symbol.asyncDispose]());
const templateDirectory = join(room.path, 'template');
let template: Template;
test.before(async () => {
  template = await makeTemplate();
});

async function makeTemplate(directory = templateDirectory): Promise<Template> {
  const ram = newTemplateRam(memSizeMib);
  const memory = { kind: 'shared', ram } as const;
  const machine = await room.start({ memSizeMib, memory, home: await room.newHome() });
  (await machine.reach()).close();
  await saveTemplate(machine, ram, KEY, { directory, aside: '.template' });
  await machine.kill();
  closeSync(ram);
  return Template.open(directory, KEY);
}

const startStopped = (home: string, from = template): Promise<TestMachine> =>
  room.startStopped({ memSizeMib, ram: from.ram, home });

async function startNew(hostname: string): Promise<TestMachine> {
  const machine = await startStopped(await room.newHome());
  await restoreTemplate(machine, machine.incoming, template);
  await continueMachine(machine);
  await machine.reach();
  await machine.configure(hostname);
  return machine;
}

async function resume(
  directory: string,
  home: string,
  hostname: string,
  from = template,
): Promise<TestMachine> {
  const machine = await startStopped(home, from);
  await restoreCheckpoint(machine, machine.incoming, { directory, template: from });
  await invalidateCheckpoint(directory);
  await continueMachine(machine);
  const guest = await machine.reach();
  await machine.configure(hostname);
  await guest.thaw();
  return machine;
}

async function pause(machine: TestMachine, directory: string, from = template): Promise<void> {
  await saveCheckpoint(machine, { directory, template: from, disks: [machine.disk] });
  await machine.kill();
}

/** Fills some of the guest's memory with random bytes and returns their sum. */
const dirty = (machine: TestMachine, name: string, mib: number): Promise<string> =>
  machine.run(`head -c ${mib}M /dev/urandom > /dev/shm/${name}; ${sumOf(name)}`);
const sumOf = (name: string): string => `sha256sum < /dev/shm/${name}`;

const IDENTITY = 'hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id';
const RANDOM = 'head -c 16 /dev/urandom | od -An -tx1';

test.serial('guests started from one template are independent', async (t) => {
  const templateBytes = fstatSync(template.ram).blocks * 512;
  const first = await startNew('first');
  const second = await startNew('second');
  const identities = [await first.run(IDENTITY), await second.run(IDENTITY)];
  t.deepEqual(new Set(identities.join('\n').split('\n')).size, 6);
  t.not(await first.run(RANDOM), await second.run(RANDOM));
  await first.run('echo first > /root/file');
  const sum = await dirty(first, 'x', 8);
  await t.throwsAsync(second.run('cat /root/file'));
  await t.throwsAsync(second.run(sumOf('x')));
  t.is(await first.run(sumOf('x')), sum);
  // The RAM they use is theirs alone: hardly anything came to what they share.
  t.true(fstatSync(template.ram).blocks * 512 - templateBytes < 4 * MiB);
  await Promise.all([first.kill(), second.kill()]);
});

/** A process that counts in its memory, and tells each number. */
async function startCounting(machine: TestMachine): Promise<void> {
  const loop = 'n=0; while sleep 0.1; do n=$((n+1)); echo $n >> /dev/shm/counts; done';
  await machine.run(`(${loop}) > /dev/null 2>&1 &`);
}
/** How far it came; it left no number out. */
const countOf = async (machine: TestMachine): Promise<number> =>
  Number(await machine.run("awk '$1 != NR { exit 1 } END { print NR }' /dev/shm/counts"));

test.serial(
  'a machine continues from its checkpoint and disk, over several generations',
  async (t) => {
    const directory = join(room.path, 'generations');
    let machine = await startNew('generation-0');
    await startCounting(machine);
    await machine.run('echo durable > /root/file; exec 2>&1; (exec 9> /root/open; sleep 1000) &');
    const sums = new Map<string, string>();
    const sizes: number[] = [];
    let counted = 0;
    for (let generation = 1; generation <= 3; generation++) {
      sums.set(`g${generation % 2}`, await dirty(machine, `g${generation % 2}`, 4));
      await machine.run(`echo ${generation} >> /root/log`);
      const { home } = machine;
      await pause(machine, directory);
      t.is(await templateOf(directory), KEY);
      sizes.push((await stat(join(directory, 'pages'))).size);
      machine = await resume(directory, home, `generation-${generation}`);
      t.is(await templateOf(directory), undefined);
      for (const [name, sum] of sums) t.is(await machine.run(sumOf(name)), sum);
      t.is(await machine.run('hostname; cat /root/file'), `generation-${generation}\ndurable`);
      const skewMs = Math.abs(Date.now() - Number(await machine.run('date +%s%3N')));
      t.true(skewMs < 60_000);
      const count = await countOf(machine);
      t.true(count > counted);
      counted = count;
    }
    t.is(await machine.run('cat /root/log'), '1\n2\n3');
    t.true(Number(sizes[2]) < 2 * Number(sizes[1]), String(sizes));
    await machine.kill();
  },
);

test.serial('a copy and its source both continue', async (t) => {
  const directory = join(room.path, 'fork');
  const parent = await startNew('parent');
  await startCounting(parent);
  const sum = await dirty(parent, 'x', 4);
  let home = '';
  await saveRunningCheckpoint(parent, { directory, template }, async () => {
    home = await room.newHome(parent.home);
  });
  const later = await dirty(parent, 'x', 4);
  const child = await resume(directory, home, 'child');
  t.is(await child.run(sumOf('x')), sum);
  t.is(await parent.run(sumOf('x')), later);
  t.not(await child.run(RANDOM), await parent.run(RANDOM));
  t.not(await child.run(IDENTITY), await parent.run(IDENTITY));
  const counts = [await countOf(parent), await countOf(child)];
  await parent.run('sleep 0.3');
  t.true((await countOf(parent)) > Number(counts[0]));
  t.true((await countOf(child)) > Number(counts[1]));
  await parent.kill();
  // The copy can be paused like any other.
  await pause(child, directory);
  const again = await resume(directory, home, 'again');
  t.is(await again.run(sumOf('x')), sum);
  await again.kill();
});

test.serial('a pause for lack of space fails and leaves the machine running', async (t) => {
  const small = join(room.path, 'small');
  await mkdir(small);
  await native.mount('tmpfs', small, 'tmpfs', MountFlag.nosuid | MountFlag.nodev, 'size=4m');
  const machine = await startNew('goes-on');
  const sum = await dirty(machine, 'x', 8);
  const directory = join(small, 'checkpoint');
  const pausing = saveCheckpoint(machine, { directory, template, disks: [machine.disk] });
  await t.throwsAsync(pausing, { code: 'ENOSPC' });
  t.is(await templateOf(directory), undefined);
  await t.throwsAsync(stat(directory), { code: 'ENOENT' });
  t.is(await machine.run(`${sumOf('x')}; sync; echo x > /root/file`), sum);
  await native.unmount(small, UnmountFlag.detach);
  const other = join(room.path, 'roomy');
  await pause(machine, other);
  const resumed = await resume(other, machine.home, 'resumed');
  t.is(await resumed.run(sumOf('x')), sum);
  await resumed.kill();
});

test.serial('a machine that ends during its pause is reported as lost', async (t) => {
  const machine = await startNew('ends');
  const directory = join(room.path, 'lost');
  const guest = {
    freeze: async (): Promise<void> => machine.kill(),
    thaw: async (): Promise<void> => undefined,
  };
  const { pid, monitor } = machine;
  const place = { directory, template, disks: [machine.disk] };
  const pausing = saveCheckpoint({ pid, monitor, guest }, place);
  await t.throwsAsync(pausing, { instanceOf: MachineStateError });
  t.is(await templateOf(directory), undefined);
});

const damages = {
  'pages that were cut': (at) => truncate(join(at, 'pages'), 100_000),
  'pages that changed': (at) => flip(join(at, 'pages'), 70_000),
  'pages of another checkpoint': (at) => cp(join(room.path, 'other/pages'), join(at, 'pages')),
  'a state that changed': (at) => flip(join(at, 'devices'), 50_000),
  'a state that is missing': (at) => truncate(join(at, 'devices'), 0),
  'a marker that was cut': (at) => truncate(join(at, 'checkpoint.json'), 20),
  'no marker': (at) => invalidateCheckpoint(at),
} satisfies Record<string, (directory: string) => Promise<void>>;

async function flip(path: string, at: number): Promise<void> {
  const contents = await readFile(path);
  contents.writeUInt8(contents.readUInt8(at) ^ 1, at);
  await writeFile(path, contents);
}

test.serial('an incomplete, damaged or foreign checkpoint is refused', async (t) => {
  const machine = await startNew('paused');
  const whole = join(room.path, 'whole');
  const copy = room.newPath('copy');
  const place = { directory: join(room.path, 'other'), template };
  await saveRunningCheckpoint(machine, place, async () => undefined);
  await pause(machine, whole);
  for (const [name, damage] of Object.entries(damages)) {
    await cp(whole, copy, { recursive: true });
    await damage(copy);
    await refuses(t, name, copy, machine.home);
    await discardCheckpoint(copy);
  }
  t.is(await templateOf(whole), KEY);
  const resumed = await resume(whole, machine.home, 'resumed');
  t.is(await resumed.run('hostname'), 'resumed');
  await resumed.kill();
});

async function refuses(
  t: ExecutionContext,
  name: string,
  directory: string,
  home: string,
): Promise<void> {
  const machine = await startStopped(home);
  const restoring = restoreCheckpoint(machine, machine.incoming, { directory, template });
  await t.throwsAsync(restoring, { instanceOf: CheckpointError }, name);
  await machine.kill();
}

test.serial(
  'a checkpoint does not fit a template that was made again with the same key',
  async (t) => {
    const machine = await startNew('paused');
    const directory = join(room.path, 'of-the-first');
    await pause(machine, directory);
    using again = await makeTemplate(join(room.path, 'made-again'));
    const other = await startStopped(machine.home, again);
    const restoring = restoreCheckpoint(other, other.incoming, { directory, template: again });
    await t.throwsAsync(restoring, { instanceOf: CheckpointError });
    await other.kill();
    await (await resume(directory, machine.home, 'resumed')).kill();
  },
);

test.serial(
  'a new agent reuses the template memory of machines that a former agent started',
  async (t) => {
    const machine = await startNew('goes-on');
    const forged = newTemplateRam(memSizeMib);
    const foreign = await room.startStopped({
      memSizeMib,
      ram: forged,
      home: await room.newHome(),
    });
    {
      using again = await Template.open(templateDirectory, KEY, [
        2 ** 30,
        foreign.pid,
        machine.pid,
      ]);
      t.deepEqual(again.mapping, template.mapping);
      const place = { directory: join(room.path, 'adopted'), template: again };
      await saveCheckpoint(machine, { ...place, disks: [machine.disk] });
    }
    using other = await Template.open(templateDirectory, KEY, [process.pid, foreign.pid]);
    t.notDeepEqual(other.mapping, template.mapping);
    await Promise.all([machine.kill(), foreign.kill()]);
    closeSync(forged);
  },
);

test.serial('a machine that booted for lack of a template can be paused', async (t) => {
  using blank = Template.blank(KEY, memSizeMib);
  const directory = join(room.path, 'booted');
  const memory = { kind: 'private', ram: blank.ram } as const;
  const machine = await room.start({ memSizeMib, memory, home: await room.newHome() });
  await machine.reach();
  await machine.configure('booted');
  const sum = await dirty(machine, 'x', 4);
  await pause(machine, directory, blank);
  t.is(await templateOf(directory), blank.key);
  using again = Template.blank(KEY, memSizeMib);
  const resumed = await resume(directory, machine.home, 'resumed', again);
  t.is(await resumed.run(sumOf('x')), sum);
  await resumed.kill();
});

test.serial('an incomplete, damaged or foreign template is refused', async (t) => {
  const copy = join(room.path, 'damaged');
  const files = { ram: 'ram', devices: 'devices', manifest: 'template.json' };
  for (const name of Object.values(files)) {
    await cp(templateDirectory, copy, { recursive: true, force: true });
    await flip(join(copy, name), name === 'template.json' ? 20 : 70_000);
    await t.throwsAsync(Template.open(copy, KEY), { instanceOf: TemplateError }, name);
  }
  const other = templateKey({ ...PARTS, vcpuCount: 2 });
  await t.throwsAsync(Template.open(templateDirectory, other), { instanceOf: TemplateError });
  const nowhere = join(room.path, 'nowhere');
  await t.throwsAsync(Template.open(nowhere, KEY), { instanceOf: TemplateError });
});

test('everything that must match changes the key', (t) => {
  const keys = [
    PARTS,
    { ...PARTS, qemuVersion: 'other' },
    { ...PARTS, guestKey: 'other' },
    { ...PARTS, accelerator: 'kvm' as const },
    { ...PARTS, processor: 'other' },
    { ...PARTS, vcpuCount: 2 },
    { ...PARTS, memSizeMib: 512 },
    { ...PARTS, arguments: ['x'] },
  ].map((parts) => templateKey(parts));
  t.is(new Set(keys).size, keys.length);
});
