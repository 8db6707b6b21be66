/*
 * The package on a host with Debian, systemd and control groups v2, which is a machine of its own:
 * set up by the documented commands, upgraded, without its storage, shut down and reset in
 * mid-work, removed. Only with BERTH_TEST_FULL=1: an emulated processor takes most of an hour for
 * it.
 */
import assert from 'node:assert';
import { basename, join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { paths } from '../../scripts/local-paths.ts';
import { ApiClient } from '../helpers/api.ts';
import { ADDRESS, DebianHost, runGroup } from '../helpers/debian-host.ts';
import { isFull } from '../helpers/full.ts';
import {
  beginExec,
  bring,
  createSandbox,
  endedExec,
  execIn,
  getSandbox,
} from '../helpers/sandboxes.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';

const MINUTE_MS = 60_000;
/** The test ends by then, whatever it waits for. */
const MS_MAX = 60 * MINUTE_MS;
/** The most, so that nothing but the end of the host ends its commands. */
const CONTROL_SETTINGS = 'EXEC_TIMEOUT_MS=290000';
/**
 * For an emulated machine: its sandboxes are containers, as a machine in a machine takes too long.
 */
const AGENT_SETTINGS =
  'SANDBOX_RUNTIME=container SANDBOX_PREWARMED=0 EXEC_SLOTS=4 DISK_SIZE_BYTES=268435456';
const MACHINES = '/sys/fs/cgroup/berth.slice/berth-machines.service';
const STORAGE = '/var/lib/berth/storage';

/** The package under a higher version, which is not built anew. @returns its path */
async function newerThan(deb: string, signal: AbortSignal): Promise<string> {
  const stage = `${deb}.newer`;
  const script = `dpkg-deb --raw-extract ${deb} ${stage}
    sed -i 's/^Version: .*/&.1/' ${stage}/DEBIAN/control
    dpkg-deb -Zzstd -z1 --build ${stage} ${stage}.deb && rm -r ${stage}`;
  await runGroup('bash', ['-ec', script], { signal });
  return `${stage}.deb`;
}

/** Goes the way of docs/operations.md. @returns a client of an account of the host */
async function setUp(t: ExecutionContext, host: DebianHost): Promise<ApiClient> {
  await host.run(`systemctl disable --now redis-server nfs-ganesha rpcbind.socket rpcbind rpc-statd
    berth-install redis --address ${ADDRESS}
    berth-install control --address ${ADDRESS}
    printf '%s\\n' ${CONTROL_SETTINGS} >>/etc/berth/control.env
    systemd-sysusers && systemctl daemon-reload
    systemctl enable --now berth-redis berth-control`);
  await host.insist('control', () => host.run(`curl -fsS http://${ADDRESS}:8701/readyz`));
  const invitation = JSON.parse(await host.run('berth-admin host invite')) as { command: string };
  t.regex(invitation.command, /^berth-agent join /u);
  await host.run(`printf '%s\\n' ${AGENT_SETTINGS} >/etc/berth/agent.env
    ${invitation.command.replace(/<.*>/u, ADDRESS)}
    berth-agent check`);
  await waitForAgent(host);
  await host.run('berth-admin account create team');
  const { token } = JSON.parse(await host.run('berth-admin key create team')) as { token: string };
  return new ApiClient(host.baseUrl, token);
}

const waitForAgent = (host: DebianHost): Promise<string> =>
  host.insist('the agent', () => host.run(`curl -fsS http://${ADDRESS}:8711/readyz`));

const runOn = (api: ApiClient, disk: string, command: string): Promise<{ stdout: string }> =>
  api.data('POST', `/api/disks/${disk}/exec`, { command });

/**
 * Errors that programs and the kernel have logged since the host booted. That its storage was
 * silent for some seconds, or the host lost to its control node, is said of an emulated machine
 * when the one that emulates it is busy.
 */
const errorsOf = (host: DebianHost): Promise<string> =>
  host.run(`{ journalctl --boot --quiet --no-pager --priority=err
    journalctl --boot --quiet --no-pager --unit='berth-*' | grep -E '"level":"(error|fatal)"'
    } | grep -vE 'storage:silent|"code":"(no_capacity|outcome_unknown|unavailable)"' || true`);

/** Each unit as systemd sees it, who its processes belong to, and what listens for whom. */
async function checkUnits(t: ExecutionContext, host: DebianHost): Promise<void> {
  t.is(await host.run('systemctl list-units --failed --quiet --plain --no-legend'), '');
  t.is((await host.run('stat -fc %T /sys/fs/cgroup')).trim(), 'cgroup2fs');
  t.log(await host.run(`systemd-analyze security --no-pager | grep -E 'UNIT|berth'`));
  const user = (unit: string): Promise<string> =>
    host.run(`ps -o user= -p "$(systemctl show --property=MainPID --value ${unit})"`);
  t.is((await user('berth-agent')).trim(), 'root');
  for (const name of ['redis', 'control']) t.regex(await user(`berth-${name}`), /^berth-/u);
  t.notRegex(await host.run('ls /sys/fs/cgroup'), /^berth$/mu, 'nothing outside of units');
  const listening = await host.run('ss -Htln | grep -vE "127.0.0.1|\\[::1\\]"');
  const ports = [...listening.matchAll(/:(\d+) /gu)].map(([, port]) => Number(port));
  const expected = [22, 6379, 8700, 8701, 8710, 8711, 8712];
  t.deepEqual(
    [...new Set(ports)].sort((a, b) => a - b),
    expected,
  );
}

interface Work {
  readonly host: DebianHost;
  readonly api: ApiClient;
  readonly disk: string;
  readonly sandbox: string;
}

/**
 * logrotate, set up by the installation, takes the audit log away twice while control writes to it.
 */
async function rotates(t: ExecutionContext, { host, api, disk }: Work): Promise<void> {
  for (let turn = 1; turn <= 2; turn += 1) {
    await host.run('logrotate --force /etc/logrotate.d/berth');
    await host.insist('a command', () => runOn(api, disk, 'true'));
  }
  const log = '/var/log/berth-control';
  t.is(await host.run(`ls ${log}`), 'audit.log\naudit.log.1\naudit.log.2.gz\n');
  for (const name of ['audit.log', 'audit.log.1']) {
    t.true((await host.run(`cat ${log}/${name}`)).includes(disk), name);
  }
}

/** @returns a script that changes the mounts of the next boot */
const editMounts = (command: string): string =>
  `sed -i '${command}' /etc/fstab; systemctl daemon-reload`;

/** Without its storage the agent neither begins nor writes below the mount point. */
async function missesStorage(t: ExecutionContext, work: Work): Promise<void> {
  const { host, api, disk, sandbox } = work;
  await host.run(`systemctl stop berth-machines && umount ${STORAGE}`);

  await host.run(editMounts('s| ext4 nofail| xfs nofail|'));
  const starting = host.run('systemctl start berth-agent');
  await t.throwsAsync(starting, { message: /dependency/iu }, 'a mount that fails');
  await host.run(editMounts('s| xfs nofail| ext4 nofail|; s|^/dev/vdb|#&|'));
  await host.run('systemctl start berth-agent');
  await host.insist('the agent to say what is missing', () =>
    host.run("journalctl --boot -u berth-agent | grep 'is not the storage that this host has had'"),
  );
  t.is((await api.call('POST', `/api/disks/${disk}/exec`, { command: 'true' })).status, 503);
  t.is(await host.run(`ls -A ${STORAGE}`), '');

  await host.run(editMounts('s|^#/dev/vdb|/dev/vdb|'));
  await host.run(`mount ${STORAGE} && systemctl restart berth-agent`);
  await waitForAgent(host);
  const read = await host.insist('the disk', () => runOn(api, disk, 'cat file'));
  t.is(read.stdout, 'kept\n');
  t.is((await getSandbox(api, sandbox)).status, 'stopped', 'with berth-machines');
  await host.insist('the sandbox to start', () => bring(api, sandbox, 'start', 'running'));
}

/** Ids of the processes in the control groups of the host's sandboxes, one to a line. */
const processesOf = (host: DebianHost): Promise<string> =>
  host.run(`find ${MACHINES}/*/sandboxes -name cgroup.procs -exec cat {} + | sort -n`);

/** Does something that the sandboxes must live through, and looks whether they have. */
async function goesOnThrough(
  t: ExecutionContext,
  what: string,
  { host, api, sandbox }: Work,
  change: () => Promise<unknown>,
): Promise<void> {
  const before = await processesOf(host);
  await change();
  await waitForAgent(host);
  t.is(await processesOf(host), before, what);
  const read = await host.insist('the sandbox', () => execIn(api, sandbox, 'cat /root/file'));
  t.is(read.stdout, 'kept\n', what);
}

const hasBegun = (
  host: DebianHost,
  read: () => Promise<{ readonly stdout?: string }>,
): Promise<void> =>
  host.insist('the command to begin', async () => {
    const { stdout } = await read();
    assert.equal(stdout, 'begun\n');
  });

/**
 * Has the host go down while a command runs on a disk and another in a sandbox. Neither is said to
 * have ended well, neither is run twice, and what was written is there.
 */
async function goDown(
  t: ExecutionContext,
  what: string,
  { host, api, disk, sandbox }: Work,
  act: () => Promise<unknown>,
): Promise<void> {
  const command = 'echo begun >>begun; sync; sleep 100000; echo ended >>begun';
  await host.insist('the sandbox', () => execIn(api, sandbox, 'rm -f /root/begun'));
  const inSandbox = command.replaceAll(/(?<=>>)begun/gu, '/root/begun');
  const { body } = await beginExec(api, sandbox, inSandbox);
  await hasBegun(host, () => execIn(api, sandbox, 'cat /root/begun'));
  await host.insist('the disk', () => runOn(api, disk, 'rm -f begun'));
  const path = `/api/disks/${disk}/exec`;
  const caller = new AbortController();
  const call = api.call('POST', path, { command }, {}, caller.signal).catch(() => undefined);
  await hasBegun(host, () => runOn(api, disk, 'cat begun'));
  const boot = await host.bootId();
  await act();
  await host.booted(boot);
  caller.abort(); // A host that was reset does not close its connections.
  t.not((await call)?.body.success, true, `${what}: the command on the disk did not end`);
  await waitForAgent(host);

  const ran = await host.insist('the disk', () => runOn(api, disk, 'cat file begun'));
  t.is(ran.stdout, 'kept\nbegun\n', what);
  const { status, exit_reason: reason } = await host.insist('it', () => getSandbox(api, sandbox));
  t.log(what, status, reason);
  t.regex(status, /^(?:stopped|failed)$/u, 'the memory of a container goes with its host');
  const exec = await endedExec(api, sandbox, body.data.exec_id);
  t.log(what, exec.status, exec.exit_reason);
  t.not(exec.exit_code, 0);
  await host.insist('the sandbox to start', () => bring(api, sandbox, 'start', 'running'));
  const read = await host.insist('its files', () =>
    execIn(api, sandbox, 'cat /root/file /root/begun'),
  );
  t.is(read.stdout, 'kept\nbegun\n', what);
}

/** The package goes, and leaves what is the operator's. */
async function remove(t: ExecutionContext, host: DebianHost): Promise<void> {
  await host.run('apt-get remove --yes berth');
  t.notRegex(await host.run('ps -eo args'), /berth/u);
  t.notRegex(await host.run('systemctl list-unit-files'), /^berth/mu);
  // The mount of the storage is the operator's.
  const left = `grep -v ' ${STORAGE} ' /proc/mounts; losetup --list; ls /sys/fs/cgroup`;
  t.notRegex(await host.run(left), /berth/u);
  await host.run('test -e /etc/berth/cluster.env && apt-get purge --yes berth');
  const kept = await host.run('ls -d /etc/berth /var/log/berth-control /var/lib/berth* || true');
  t.regex(kept, /^\/var\/lib\/berth\n\/var\/lib\/berth-redis$/mu);
  t.notRegex(kept, /^\/(?:etc|var\/log)/mu);
}

async function keepsItsPromises(
  t: ExecutionContext,
  host: DebianHost,
  newer: string,
): Promise<void> {
  await host.booted();
  const api = await setUp(t, host);
  const { id: disk } = await host.insist('a disk', () =>
    api.data<{ id: string }>('POST', '/api/disks', { name: 'notes' }),
  );
  const first = await host.insist('a command', () =>
    runOn(api, disk, 'echo kept | tee file; sync'),
  );
  t.is(first.stdout, 'kept\n');
  const { sandbox_id: sandbox } = await host.insist('a sandbox', () => createSandbox(api));
  const inside = await host.insist('a command in it', () =>
    execIn(api, sandbox, 'echo kept | tee /root/file'),
  );
  t.is(inside.stdout, 'kept\n');
  await checkUnits(t, host);

  const work = { host, api, disk, sandbox };
  await goesOnThrough(t, 'a restart', work, () => host.run('systemctl restart berth-agent'));
  await host.copy(newer);
  await goesOnThrough(t, 'an upgrade', work, () =>
    host.run(`apt-get install --yes ./${basename(newer)}`),
  );
  t.is(await errorsOf(host), '');
  await rotates(t, work);
  await missesStorage(t, work);
  // The connection may be closed before the answer.
  await goDown(t, 'a reboot', work, () => host.run('systemctl reboot').catch(() => undefined));
  await goDown(t, 'a reset', work, () => host.reset());
  await checkUnits(t, host);
  await remove(t, host);
}

(isFull ? test : test.skip)(
  'a host with Debian and systemd joins by the documented commands and keeps what it promised',
  async (t) => {
    t.timeout(MS_MAX + MINUTE_MS);
    const signal = AbortSignal.timeout(MS_MAX);
    await using directory = await temporaryDirectory();
    const built = await runGroup(join(paths.root, 'scripts/package'), [directory.path], { signal });
    const deb = built.trim();
    const newer = await newerThan(deb, signal);
    await using host = await DebianHost.install(join(directory.path, 'host'), deb, signal);
    try {
      await keepsItsPromises(t, host, newer);
    } catch (error) {
      t.log(await host.describe());
      throw error;
    }
  },
);
