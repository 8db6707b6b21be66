import test from 'ava';
import {
  bootArguments,
  kernelCommandLine,
  qemuArguments,
  stateArguments,
  type QemuSpec,
} from '../../../../../agent/machines/qemu/process/qemu-arguments.ts';

const spec = (changes: Partial<QemuSpec> = {}): QemuSpec => ({
  architecture: 'x64',
  accelerator: 'tcg',
  name: 'sandbox-1',
  vcpuCount: 2,
  memSizeMib: 512,
  memory: { kind: 'anonymous' },
  diskLayers: ['root.qcow2'],
  isRestored: false,
  network: { mac: '02:00:00:00:00:01' },
  ...changes,
});

/** The values of an option, in order. */
const valuesOf = (args: readonly string[], option: string): string[] =>
  args.flatMap((argument, index) => (args[index - 1] === option ? [argument] : []));

const nodesOf = (args: readonly string[]): Record<string, unknown>[] =>
  valuesOf(args, '-blockdev').map((text) => JSON.parse(text) as Record<string, unknown>);

test('memory is an object of its own, named by the machine', (t) => {
  const args = qemuArguments(spec());
  t.deepEqual(valuesOf(args, '-m'), ['512M']);
  t.deepEqual(valuesOf(args, '-object'), ['memory-backend-ram,id=ram,size=512M']);
  t.regex(String(valuesOf(args, '-machine')), /^q35,.*memory-backend=ram$/u);
});

test('memory can be a file, private or shared', (t) => {
  for (const isShared of [false, true]) {
    const memory = { kind: 'file', path: '/proc/self/fd/10', isShared } as const;
    const args = qemuArguments(spec({ memory }));
    const share = isShared ? 'on' : 'off';
    t.deepEqual(valuesOf(args, '-object'), [
      `memory-backend-file,id=ram,size=512M,mem-path=/proc/self/fd/10,share=${share}`,
    ]);
  }
});

test('every format of the root disk is named, and only the last layer is written to', (t) => {
  const nodes = nodesOf(qemuArguments(spec({ diskLayers: ['a.qcow2', 'b.qcow2'] })));
  const formats = nodes.filter(({ driver }) => driver !== 'file');
  t.deepEqual(
    formats.map((node) => [node['driver'], node['node-name'], node['backing'], node['read-only']]),
    [
      ['raw', 'base', undefined, true],
      ['qcow2', 'layer0', 'base', true],
      ['qcow2', 'root', 'layer0', false],
    ],
  );
  const files = nodes.filter(({ driver }) => driver === 'file');
  t.deepEqual(
    files.map((node) => [node['filename'], node['read-only']]),
    [
      ['/base/root', true],
      ['/disks/a.qcow2', true],
      ['/disks/b.qcow2', false],
    ],
  );
});

test('a probe machine has neither disk nor network', (t) => {
  const args = qemuArguments(spec({ diskLayers: [], network: undefined }));
  t.deepEqual(valuesOf(args, '-blockdev'), []);
  t.deepEqual(valuesOf(args, '-netdev'), []);
  t.false(args.some((argument) => argument.includes('virtio-blk')));
});

test('a restored machine waits for its state and reads no kernel', (t) => {
  const args = qemuArguments(spec({ isRestored: true }));
  t.deepEqual(valuesOf(args, '-incoming'), ['defer']);
  t.true(args.includes('-S'));
  t.false(args.includes('-kernel'));
  const devices = (of: readonly string[]): string[] => valuesOf(of, '-device');
  t.deepEqual(devices(args), devices(qemuArguments(spec())));
});

test('the accelerator determines the processor model and the kernel command line', (t) => {
  const kvm = qemuArguments(spec({ accelerator: 'kvm' }));
  t.deepEqual(valuesOf(kvm, '-accel'), ['kvm']);
  t.deepEqual(valuesOf(kvm, '-cpu'), ['host']);
  t.notRegex(kernelCommandLine('x64', 'kvm'), /mitigations/u);
  const tcg = qemuArguments(spec());
  t.regex(String(valuesOf(tcg, '-accel')), /^tcg,thread=multi,tb-size=\d+$/u);
  t.regex(kernelCommandLine('x64', 'tcg'), /mitigations=off/u);
  // Its rate is measured at boot, wrongly on a busy host.
  t.regex(kernelCommandLine('x64', 'tcg'), /tsc=unstable/u);
});

test('what only a boot asks for is no part of what a state depends on', (t) => {
  const restored = spec({ isRestored: true });
  t.deepEqual(valuesOf(qemuArguments(restored), '-cpu'), ['max,-erms,-fsrm']);
  t.deepEqual(valuesOf(stateArguments(restored), '-cpu'), ['max']);
  const changed = qemuArguments(restored).filter(
    (argument, index) => argument !== stateArguments(restored)[index],
  );
  t.deepEqual(changed, ['max,-erms,-fsrm']);
  t.deepEqual(bootArguments('x64', 'tcg'), ['max,-erms,-fsrm', kernelCommandLine('x64', 'tcg')]);
  t.deepEqual(bootArguments('arm64', 'tcg')[0], 'max');
});

test('arm64 has a machine and a console of its own', (t) => {
  const args = qemuArguments(spec({ architecture: 'arm64' }));
  t.regex(String(valuesOf(args, '-machine')), /^virt,/u);
  t.regex(String(valuesOf(args, '-append')), /console=ttyAMA0/u);
  t.deepEqual(valuesOf(args, '-bios'), []);
});

const refuses = test.macro({
  exec(t, changes: Partial<QemuSpec>) {
    t.throws(() => qemuArguments(spec(changes)));
  },
  title: (what) => `refuses ${what}`,
});

test('a name with a comma', refuses, { name: 'a,debug-threads=on' });
test('an address with further options', refuses, {
  network: { mac: '02:00:00:00:00:01,x=y' },
});
test('a layer outside of its directory', refuses, { diskLayers: ['../root.qcow2'] });
test('a layer with a comma', refuses, { diskLayers: ['a,b'] });
test('memory at a path with a comma', refuses, {
  memory: { kind: 'file', path: '/a,share=on', isShared: false },
});
test('memory that is no number', refuses, { memSizeMib: Number.NaN });
test('half a processor', refuses, { vcpuCount: 0.5 });
