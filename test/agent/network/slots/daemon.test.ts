/* Daemons of the host's network, which outlive the agent that started them. */
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test from 'ava';
import { endDaemon, keepDaemon } from '../../../../agent/network/slots/daemon.ts';
import {
  detectCgroups,
  readPids,
  removeCgroups,
  trackingGroup,
} from '../../../../agent/system/cgroup.ts';
import { NETWORK_GROUP } from '../../../../agent/system/helper-group.ts';

const run = promisify(execFile);
/** Goes to the background with its command line. */
const DAEMON = 'import os, time; os.fork() and os._exit(0); os.close(2); time.sleep(1000)';

test('a daemon is kept, but not one that has settings of a former agent in its environment', async (t) => {
  await using undo = new AsyncDisposableStack();
  const unique = `berth-test-${randomBytes(4).toString('hex')}`;
  await run('ip', ['netns', 'add', unique]);
  undo.defer(() => run('ip', ['netns', 'delete', unique]).then(() => undefined));
  const groups = { cgroups: await detectCgroups(), cgroupParent: `/${unique}` };
  const command = ['/usr/bin/python3', '-c', DAEMON] as const;
  const spec = { name: 'a-daemon', namespace: unique, command };
  const group = trackingGroup(groups.cgroups, `/${unique}/${NETWORK_GROUP}/a-daemon`);
  const procs = join(group, 'cgroup.procs');
  undo.defer(() => removeCgroups(groups.cgroups, groups.cgroupParent));
  undo.defer(() => endDaemon(groups, 'a-daemon'));
  await mkdir(group, { recursive: true });
  await run('sh', ['-c', 'echo 0 > "$0" && exec "$@" >/dev/null 2>&1', procs, ...command], {
    env: { CLUSTER_SECRET: 'secret' },
  });
  const former = await readPids(procs);

  await keepDaemon(groups, spec);

  const [pid = 0, ...others] = await readPids(procs);
  t.false(former.includes(pid));
  t.deepEqual(others, []);
  t.notRegex(await readFile(`/proc/${pid}/environ`, 'utf8'), /CLUSTER_SECRET/u);
  await keepDaemon(groups, spec);
  t.deepEqual(await readPids(procs), [pid]);
});
