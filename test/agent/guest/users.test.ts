/* Whom processes run as, where, and with which variables, when an image says so. */
import test from 'ava';
import { collect, guestBuilds, processSpec, startConfigured } from '../../helpers/guest.ts';

/** The name space's own `/etc`, with users as an image has them. */
const prepare = [
  'printf "root:x:0:0::/root:/bin/sh\\nnode:x:1000:1001::/home/node:/bin/sh\\n" >/etc/passwd',
  'printf "root:x:0:\\nnode:x:1001:\\nstaff:x:50:node\\nextra:x:51:other,node\\n" >/etc/group',
];

const WHO = 'echo $(id -u) $(id -g) $(id -G) $HOME';

for (const build of guestBuilds) {
  test(`${build.name}: a user is found by name or number, with groups and home`, async (t) => {
    await using started = await startConfigured({ build, prepare });
    const who = async (user: string): Promise<string> =>
      (await collect(started.channel, processSpec(WHO, { user }))).text;
    t.is(await who(''), '0 0 0 /root\n');
    t.is(await who('node'), '1000 1001 1001 50 51 /home/node\n');
    t.is(await who('1000'), '1000 1001 1001 50 51 /home/node\n');
    t.is(await who('node:staff'), '1000 50 50 /home/node\n');
    t.is(await who('node:7'), '1000 7 7 /home/node\n');
    t.is(await who('4242'), '4242 0 0 /\n');
    t.is(await who('4242:4243'), '4242 4243 4243 /\n');
  });

  test(`${build.name}: a user or group that the image does not list is told`, async (t) => {
    await using started = await startConfigured({ build, prepare });
    const start = (user: string): Promise<unknown> =>
      started.channel.start(processSpec('true', { user }));
    await t.throwsAsync(start('nobody-here'), { message: /user ENOENT: .*\/etc\/passwd/u });
    await t.throwsAsync(start('node:nogroup'), { message: /group ENOENT: .*\/etc\/group/u });
    await t.throwsAsync(start('99999999999'), { message: /user ENOENT/u });
    await t.throwsAsync(start('-1'), { message: /user ENOENT/u });
    t.is((await collect(started.channel, processSpec('echo next'))).text, 'next\n');
  });

  test(`${build.name}: a list of users that is no file is not waited for`, async (t) => {
    const fifo = [...prepare, 'rm /etc/passwd && mkfifo /etc/passwd'];
    await using started = await startConfigured({ build, prepare: fifo });
    const spec = processSpec('true', { user: 'node' });
    await t.throwsAsync(started.channel.start(spec), { message: /user ENOENT/u });
    t.is((await collect(started.channel, processSpec(WHO, { user: '5' }))).text, '5 0 0 /\n');
  });

  test(`${build.name}: processes have the settings’ user, directory and variables, or their own`, async (t) => {
    const settings = {
      ...{ user: 'node', directory: '/run/made/for/it' },
      environment: { FROM_IMAGE: '1', BOTH: 'image' },
    };
    await using started = await startConfigured({ build, prepare, settings });
    const show = 'id -un; pwd; echo $HOME $FROM_IMAGE $BOTH';
    const { text } = await collect(started.channel, processSpec(show));
    t.is(text, 'node\n/run/made/for/it\n/home/node 1 image\n');
    const own = { user: '0:0', directory: '/', environment: { BOTH: 'own' } };
    const other = await collect(started.channel, processSpec(show, own));
    t.is(other.text, 'root\n/\n/root 1 own\n');
  });

  test(`${build.name}: a user that is not root can open its own streams and no rights are left`, async (t) => {
    await using started = await startConfigured({ build, prepare });
    const command = 'echo out >/dev/stdout; grep CapEff /proc/self/status; cat /etc/shadow || true';
    const long = `${command}\n#${'x'.repeat(200_000)}`;
    for (const text of [command, long]) {
      const found = await collect(started.channel, processSpec(text, { user: 'node' }));
      t.regex(found.of(1).toString(), /^out\nCapEff:\s0{16}\n$/u);
      t.regex(found.of(2).toString(), /denied/u);
    }
    const terminal = { columns: 80, rows: 24 };
    const tty = processSpec('echo here >/dev/tty; stat -c %U "$(tty)"', { user: 'node', terminal });
    t.is((await collect(started.channel, tty)).text, 'here\r\nnode\r\n');
  });
}
