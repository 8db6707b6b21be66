/*
 * The filter of system calls, tried from inside a container by each way into the kernel that the
 * processor has (test/fixtures/raw-calls.c).
 */
import anyTest, { type TestFn } from 'ava';
import { commandToInstall, openContainers, runInContainer } from '../../helpers/containers.ts';

interface Call {
  readonly way: string;
  readonly name: string;
  readonly args: readonly bigint[];
  /** An errno; 0: it succeeded; negative: the signal that ended the process. */
  readonly outcome: number;
}

const test = anyTest as TestFn<{ calls: Call[] }>;

const ENOSYS = 38;
const SIGSYS = 31;
const F_GETLEASE = 1025n;
const LEASES = [1024n, 1026n, 1039n, 1040n];

function parse(line: string): Call {
  const [way = '', name = '', ...rest] = line.split(' ');
  return {
    way,
    name,
    args: rest.slice(0, -1).map(BigInt),
    outcome: Number(rest.at(-1)),
  };
}

/** `socket 1 2`, of a family that may be used; the types that it offers are the kernel's matter. */
const isAllowedSocket = ({ name, args: [family, , protocol] }: Call): boolean =>
  family === 1n ||
  (name === 'socket' &&
    ((family === 16n && protocol === 0n) ||
      ((family === 2n || family === 10n) && [0n, 6n, 17n].includes(protocol ?? -1n))));

test.before(async (t) => {
  await using containers = await openContainers();
  const install = await commandToInstall('raw-calls', '/tmp/raw-calls');
  const command = `${install} cd /tmp && ./raw-calls`;
  const { stdout, stderr, exitCode } = await runInContainer(containers.host, command);
  t.is(exitCode, 0, stderr);
  t.context.calls = stdout.trim().split('\n').map(parse);
});

const show = ({ way, name, args, outcome }: Call): string =>
  `${way} ${name}(${args.join(', ')}): ${outcome}`;

test('sockets and pairs of them exist for the listed families and protocols only', (t) => {
  const sockets = t.context.calls.filter(
    ({ way, name }) => way === 'native' && name.startsWith('socket'),
  );
  t.true(sockets.length > 500);
  const others = sockets.filter((call) => !isAllowedSocket(call));
  t.deepEqual(others.filter(({ outcome }) => outcome !== ENOSYS).map(show), []);
  const made = sockets.filter(({ outcome }) => outcome === 0);
  for (const family of [1n, 2n, 10n, 16n]) t.true(made.some(({ args }) => args[0] === family));
  t.true(made.some(({ name }) => name === 'socketpair'));
});

test('no lease and no delegation of a file can be taken, nor a directory watched by signal', (t) => {
  const isLease = ({ args }: Call): boolean => LEASES.includes((args[1] ?? 0n) & 0xffff_ffffn);
  const controls = t.context.calls.filter(({ name, way }) => way === 'native' && name === 'fcntl');
  t.true(controls.filter(isLease).length > LEASES.length);
  t.deepEqual(
    controls
      .filter(isLease)
      .filter(({ outcome }) => outcome !== ENOSYS)
      .map(show),
    [],
  );
  const usual = controls.filter(
    ({ args: [, command = 0n] }) => command < 17n || command === F_GETLEASE,
  );
  t.is(usual.length, 18);
  t.deepEqual(usual.filter(({ outcome }) => outcome === ENOSYS).map(show), []);
});

test('a call that is not of the native architecture ends its process', (t) => {
  const foreign = t.context.calls.filter(({ way }) => way !== 'native');
  t.true(process.arch !== 'x64' || foreign.length > 1000);
  t.deepEqual(foreign.filter(({ outcome }) => outcome !== -SIGSYS).map(show), []);
});
