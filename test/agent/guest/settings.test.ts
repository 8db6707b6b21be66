/* Identity, network, root disk: what the settings make of a guest, in namespaces of its own. */
import { randomUUID } from 'node:crypto';
import { truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { run } from '../../../agent/system/spawn.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';
import { waitFor } from '../../helpers/wait.ts';
import {
  collect,
  guestBuilds,
  guestSettings,
  processSpec,
  startConfigured,
} from '../../helpers/guest.ts';
import { MiB } from '../../../shared/units.ts';

const undashed = (id: string): string => id.replaceAll('-', '');
const network = {
  interface: 'eth0',
  address: '10.9.8.2',
  prefixBits: 24,
  gateway: '10.9.8.1',
  resolver: '10.9.8.1',
  mtuBytes: 1400,
};
const addInterface = 'ip link add eth0 type veth peer name host0 && ip link set host0 up';

const SHOW_NETWORK = [
  'ip -4 -o addr show | tr -s " " | cut -d " " -f 2,4',
  'ip route; cat /sys/class/net/eth0/mtu; grep name /etc/resolv.conf',
].join('; ');

const shown = (last: string): string =>
  [
    'lo 127.0.0.1/8',
    `eth0 10.9.8.${last}/24`,
    'default via 10.9.8.1 dev eth0 ',
    `10.9.8.0/24 dev eth0 proto kernel scope link src 10.9.8.${last} `,
    '1400',
    'nameserver 10.9.8.1',
    '',
  ].join('\n');

for (const build of guestBuilds) {
  test(`${build.name}: identity takes effect, and another one later`, async (t) => {
    await using started = await startConfigured({ build });
    for (const hostname of ['first', 'second']) {
      const settings = guestSettings({ hostname });
      await started.channel.configure(settings);
      const spec = processSpec(
        'hostname; cat /etc/hostname /etc/machine-id /proc/sys/kernel/random/boot_id; mount | grep -c boot_id',
      );
      const { text } = await collect(started.channel, spec);
      const expected = [hostname, hostname, undashed(settings.machineId), settings.bootId, '1', ''];
      t.is(text, expected.join('\n'));
    }
  });

  test(`${build.name}: hosts of the image are left alone, its machine id is not`, async (t) => {
    const prepare = ['echo "10.0.0.1 theirs" >/etc/hosts', 'ln -sf /nowhere/id /etc/machine-id'];
    const machineId = randomUUID();
    await using started = await startConfigured({ build, prepare, settings: { machineId } });
    const spec = processSpec('cat /etc/hosts /etc/machine-id');
    const { text } = await collect(started.channel, spec);
    t.is(text, `10.0.0.1 theirs\n${undashed(machineId)}\n`);
  });

  test(`${build.name}: the network has its address, route, resolver and size, and may change`, async (t) => {
    await using started = await startConfigured({
      build,
      prepare: [addInterface],
      settings: { network },
    });
    const { channel } = started;
    t.is((await collect(channel, processSpec(SHOW_NETWORK))).text, shown('2'));
    await channel.configure(guestSettings({ network: { ...network, address: '10.9.8.77' } }));
    t.is((await collect(channel, processSpec(SHOW_NETWORK))).text, shown('77'));
  });

  test(`${build.name}: settings that cannot take effect are told by their step`, async (t) => {
    await using started = await startConfigured({ build });
    const { channel } = started;
    await t.throwsAsync(channel.configure(guestSettings({ network })), {
      message: 'guest refused: system network ENODEV',
    });
    const rootDisk = { device: '/dev/nosuch', type: 'ext4' };
    await t.throwsAsync(channel.configure(guestSettings({ rootDisk })), {
      message: 'guest refused: system root ENOENT',
    });
    await t.throwsAsync(channel.configure(guestSettings({ hostname: '' })), {
      message: 'guest refused: invalid',
    });
    await channel.configure(guestSettings());
  });

  test(`${build.name}: the root disk becomes the root once, with what lies on it`, async (t) => {
    await using directory = await temporaryDirectory();
    const image = join(directory.path, 'root.ext4');
    await writeFile(image, '');
    await truncate(image, 64 * MiB);
    await run('mke2fs', ['-q', '-t', 'ext4', '-d', await smallRoot(directory.path), image]);
    const prepare = [
      `losetup --find --show ${image} >/run/loop`,
      'ln -s "$(cat /run/loop)" /run/disk',
    ];
    await using started = await startConfigured({ build, prepare });
    const { channel } = started;
    const rootDisk = { device: '/run/disk', type: 'ext4' };
    const settings = guestSettings({ rootDisk, hostname: 'on-disk' });
    await channel.configure(settings);
    await channel.configure(settings);
    const spec = processSpec(
      'cat /marker /etc/hostname; echo kept >/written; cat /proc/self/mounts',
    );
    const { text } = await collect(channel, spec);
    t.regex(text, /^on the disk\non-disk\n/u);
    t.regex(text, / \/ ext4 rw,noatime/u);
    t.regex(text, / \/proc proc /u);
    await t.throwsAsync(
      channel.configure(guestSettings({ rootDisk: { device: '/run/other', type: 'ext4' } })),
      { message: /root EBUSY/u },
    );
    await channel.shutdown(1000);
    t.is(await started.guest.exited, 0);
    const loop = (await run('losetup', ['--noheadings', '--output', 'NAME', '-j', image])).trim();
    if (loop !== '') await run('losetup', ['-d', loop]);
    // The kernel unmounts, and writes back, after the last process of the name space is gone.
    await waitFor('the file in the image', async () =>
      (await run('debugfs', ['-R', 'cat /written', image])).split('\n').includes('kept'),
    );
    t.regex(await run('dumpe2fs', ['-h', image]), /Filesystem state: +clean/u);
  });
}

/** Just what a shell needs: this host's own, with the libraries that it names. */
async function smallRoot(parent: string): Promise<string> {
  const root = join(parent, 'tree');
  const script = `
    mkdir -p ${root}/bin ${root}/proc
    for program in sh cat; do
      cp "$(command -v $program)" ${root}/bin/
      for library in $(ldd "$(command -v $program)" | grep -o '/[^ ]*'); do
        mkdir -p ${root}$(dirname $library) && cp -L $library ${root}$library
      done
    done
    echo "on the disk" >${root}/marker`;
  await run('sh', ['-e', '-c', script]);
  return root;
}
