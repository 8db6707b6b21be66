import { chmod, mkdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import type { ContainerHost } from '../../../agent/commands/container.ts';
import {
  openUserRanges,
  type UserRangeSettings,
} from '../../../agent/commands/open-user-ranges.ts';
import { paths } from '../../../agent/system/paths.ts';
import { makeRunDirectory } from '../../../agent/system/run-directory.ts';
import { createLogger } from '../../../shared/log.ts';
import { openContainers } from '../../helpers/containers.ts';

const log = createLogger('test', {});
const settings = (mode: UserRangeSettings['mode']): UserRangeSettings => ({
  mode,
  baseId: 2 ** 31,
  reserved: [],
});

/** An agent's data directory below the test's, as it is before the containers' users are there. */
async function dataDirectory(below: string, host: ContainerHost) {
  const dataDir = join(below, 'data');
  const runDir = join(below, 'run');
  const containersDir = paths.containers(runDir);
  await makeRunDirectory(runDir);
  await mkdir(join(dataDir, 'sandboxes'), { recursive: true, mode: 0o755 });
  await writeFile(join(dataDir, 'journal'), 'private', { mode: 0o644 });
  return { dataDir, runDir, host: { ...host, containersDir } };
}

const modeOf = async (...names: string[]): Promise<number> =>
  (await stat(join(...names))).mode & 0o777;

test('containers’ users get through to their directories and to nothing else', async (t) => {
  await using containers = await openContainers();
  const { dataDir, runDir, host } = await dataDirectory(containers.directory, containers.host);
  const ranges = await openUserRanges(settings('on'), dataDir, host, log);
  const users = await ranges?.take();
  t.true((users?.firstId ?? 0) >= 2 ** 31);
  users?.release();
  t.is(await modeOf(dataDir), 0o711);
  t.is(await modeOf(dataDir, 'sandboxes'), 0o700);
  t.is(await modeOf(runDir), 0o711);
  t.is(await modeOf(runDir, 'containers'), 0o711);
  t.is(await modeOf(runDir, 'mounts'), 0o700);
  t.is(await modeOf(runDir, 'held'), 0o700);
  t.is(await modeOf(dataDir, 'journal'), 0o600);
  t.is(await openUserRanges(settings('off'), dataDir, host, log), undefined);
});

test('where containers cannot have users of their own, they do without or the agent says why', async (t) => {
  await using containers = await openContainers();
  const { dataDir, host } = await dataDirectory(containers.directory, containers.host);
  await chmod(containers.directory, 0o700);
  t.is(await openUserRanges(settings('auto'), dataDir, host, log), undefined);
  const error = await t.throwsAsync(openUserRanges(settings('on'), dataDir, host, log), {
    message: /EXEC_USER_NAMESPACES/u,
  });
  t.regex(String(error?.cause), /permission denied/u);
  t.false((await readFile('/proc/self/mountinfo', 'utf8')).includes(containers.directory));
});
