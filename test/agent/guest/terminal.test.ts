import test from 'ava';
import { Collected, guestBuilds, processSpec, startConfigured } from '../../helpers/guest.ts';

const terminal = { terminal: { columns: 80, rows: 24 } };

const shared = await Promise.all(
  guestBuilds.map(async (build) => ({ build, started: await startConfigured({ build }) })),
);
test.after.always(() => Promise.all(shared.map(({ started }) => started[Symbol.asyncDispose]())));

for (const {
  build,
  started: { channel },
} of shared) {
  test(`${build.name}: a terminal has its size, its type and one stream`, async (t) => {
    const spec = processSpec(
      'stty size; echo $TERM; echo err >&2; tty </dev/tty >/dev/null',
      terminal,
    );
    const collected = new Collected(channel, spec.id);
    await channel.start(spec);
    await collected.ended();
    t.is(collected.text, '24 80\r\nxterm-256color\r\nerr\r\n');
    t.is(collected.of(2).length, 0);
    t.is(collected.exit?.exitCode, 0);
  });

  test(`${build.name}: a resized terminal tells its process`, async (t) => {
    const script = 'trap "stty size; exit 4" WINCH; echo up; while :; do sleep 0.02; done';
    const spec = processSpec(script, terminal);
    const collected = new Collected(channel, spec.id);
    await channel.start(spec);
    await collected.until(() => collected.text.includes('up'));
    await channel.resize(spec.id, 132, 50);
    await collected.ended();
    t.is(collected.text, 'up\r\n50 132\r\n');
    t.is(collected.exit?.exitCode, 4);
    const record = (await channel.list()).find(({ id }) => id === spec.id);
    t.deepEqual([record?.columns, record?.rows], [132, 50]);
  });

  test(`${build.name}: Ctrl-D ends the input, and closing stdin does nothing`, async (t) => {
    const spec = processSpec('cat; echo over', terminal);
    const collected = new Collected(channel, spec.id);
    await channel.start(spec);
    await channel.closeStdin(spec.id);
    await channel.writeStdin(spec.id, Buffer.from('typed\n\u0004'));
    await collected.ended();
    t.is(collected.text, 'typed\r\ntyped\r\nover\r\n');
  });

  test(`${build.name}: Ctrl-C interrupts what runs in the foreground`, async (t) => {
    const spec = processSpec('trap "echo caught; exit 9" INT; echo up; sleep 1000', terminal);
    const collected = new Collected(channel, spec.id);
    await channel.start(spec);
    await collected.until(() => collected.text.includes('up'));
    await channel.writeStdin(spec.id, Buffer.from('\u0003'));
    await collected.ended();
    t.true(collected.text.endsWith('caught\r\n'));
    t.is(collected.exit?.exitCode, 9);
  });

  test(`${build.name}: a login shell with a terminal takes commands and ends`, async (t) => {
    const spec = processSpec('exec /bin/sh -l', terminal);
    const collected = new Collected(channel, spec.id);
    await channel.start(spec);
    await channel.writeStdin(spec.id, Buffer.from('echo $((40 + 2))\nexit 6\n'));
    await collected.ended();
    t.true(collected.text.includes('42\r\n'));
    t.is(collected.exit?.exitCode, 6);
  });

  test(`${build.name}: much output of a terminal comes whole`, async (t) => {
    const spec = processSpec('seq 1 100000', terminal);
    const collected = new Collected(channel, spec.id);
    await channel.start(spec);
    await collected.ended();
    const expected = Array.from({ length: 100_000 }, (_, index) => `${index + 1}\r\n`).join('');
    t.true(collected.text === expected);
  });

  test(`${build.name}: who has no terminal cannot be resized`, async (t) => {
    const spec = processSpec('sleep 1000');
    await channel.start(spec);
    await t.throwsAsync(channel.resize(spec.id, 80, 24), { message: /unsupported/u });
    await channel.signal(spec.id, 9);
  });
}
