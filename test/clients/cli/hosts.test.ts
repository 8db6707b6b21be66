/* `berth host …` against a real stack: what an operator reads before a host is forgotten. */
import { newDiskId, newHostId, newSandboxId } from '../../../shared/ids.ts';
import type { HostReport } from '../../../shared/schemas/host.ts';
import { Cli } from '../../helpers/cli.ts';
import { stackTest } from '../../helpers/stack-test.ts';
import { Terminal } from '../../helpers/terminal.ts';

const { serial: test } = stackTest({}, async ({ stack }) => {
  const cli = await Cli.in(stack.directory, await stack.newClient(['operator']));
  const { hosts } = await stack.openDirectory();
  const [sandbox, disk] = [newSandboxId(), newDiskId()];
  const report: HostReport = {
    ...{ version: '1.0.0', vcpus: 8, vcpusFree: 6, memoryMib: 1024, memoryMibFree: 512 },
    ...{ storageFreeBytes: 1, execSlots: 8, execsRunning: 0, execsWaiting: 0 },
    ...{ accelerator: 'tcg', acceleratorReason: 'timed_out' },
    ...{ sandboxes: 3, sandboxesActive: 2, sandboxesActiveIds: [sandbox] },
    ...{ disks: 4, disksHeld: 1, disksHeldIds: [disk], order: 'up', seenAt: 1 },
  };
  /** A host that reported long ago. */
  const lose = async (): Promise<string> => {
    const hostId = newHostId();
    await hosts.exchange(hostId, { report, internalUrl: undefined });
    return hostId;
  };
  return {
    cli,
    lose,
    sandbox,
    disk,
    isListed: async (id: string) => (await hosts.get(id)) !== undefined,
  };
});

test('host rm names the work that goes with a host, and removes nothing unasked', async (t) => {
  const { cli, lose, sandbox, disk, isListed } = t.context;
  const id = await lose();
  const work = `${id}, away, heard .*: sandboxes 3, active 2 \\(${sandbox}, and 1 more\\); disks held 1 \\(${disk}\\)`;
  const refused = await cli.run(['host', 'rm', id]);
  t.is(refused.code, 1);
  t.regex(
    refused.stderr,
    new RegExp(`^berth: nobody can be asked here: add --yes to remove ${work}`, 'u'),
  );
  t.regex(
    await cli.output('host', 'rm', id, '--dry-run'),
    new RegExp(`^would remove ${work}`, 'u'),
  );
  t.true(await isListed(id));
  t.regex(await cli.output('host', 'get', id), /MACHINES .*\n.* tcg \(timed_out\) /u);
  t.is(await cli.output('host', 'rm', id, '--yes'), `${id} is removed\n`);
  t.false(await isListed(id));
});

test('host rm at a terminal asks', async (t) => {
  const { cli, lose, disk, isListed } = t.context;
  const id = await lose();
  const words = [...cli.command, 'host', 'rm', id];
  for (const [key, isKept] of [
    ['n', true],
    ['y', false],
  ] as const) {
    await using terminal = await Terminal.open(cli.directory, words, cli.environment, {
      cols: 200,
      rows: 24,
    });
    await terminal.shows(/Forget this host/u);
    await terminal.shows(new RegExp(disk, 'u'));
    await terminal.type(key);
    await terminal.shows(/ended with/u);
    t.is(await isListed(id), isKept);
  }
});
