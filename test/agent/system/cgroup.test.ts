import { randomBytes } from 'node:crypto';
import { mkdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { detectCgroups, oomKills, removeCgroups } from '../../../agent/system/cgroup.ts';

const pathsOf = (version: 1 | 2, group: string): string[] =>
  version === 2
    ? [join('/sys/fs/cgroup', group)]
    : ['memory', 'pids'].map((controller) => join('/sys/fs/cgroup', controller, group));

test('this host offers limits on memory and processes', async (t) => {
  const { controllers } = await detectCgroups();
  t.true(controllers.has('memory'));
  t.true(controllers.has('pids'));
});

test('a group that is not there: nothing was killed in it, and removing it is no fault', async (t) => {
  const host = await detectCgroups();
  t.is(await oomKills(host, '/nosuchgroup/x'), 0);
  await t.notThrowsAsync(removeCgroups(host, '/nosuchgroup/x'));
});

test('groups are removed with what is below them, and their parent when nobody else uses it', async (t) => {
  const host = await detectCgroups();
  const parent = `/berth-test-${randomBytes(4).toString('hex')}`;
  const [mine, other] = [`${parent}/host-a`, `${parent}/host-b`];
  for (const path of [
    ...pathsOf(host.version, `${mine}/container`),
    ...pathsOf(host.version, other),
  ]) {
    await mkdir(path, { recursive: true });
  }
  await removeCgroups(host, mine);
  for (const path of pathsOf(host.version, mine)) {
    await t.throwsAsync(stat(path), { code: 'ENOENT' });
  }
  for (const path of pathsOf(host.version, other)) await t.notThrowsAsync(stat(path));
  await removeCgroups(host, other);
  for (const path of pathsOf(host.version, parent)) {
    await t.throwsAsync(stat(path), { code: 'ENOENT' });
  }
});
