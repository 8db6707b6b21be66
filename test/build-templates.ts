/*
 * Makes the template of the machines that tests use, once for each guest and QEMU, and prints the
 * directory that holds it: every stack of the suite would otherwise boot a machine for a template
 * of its own.
 */
import { access, mkdir, readdir, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { paths } from '../agent/system/paths.ts';
import { MachineHost } from './helpers/machines.ts';
import { copyTemplates } from './helpers/templates.ts';
import { waitFor } from './helpers/wait.ts';

const MADE_MS_MAX = 300_000;
const SHAPE = { vcpuCount: 1, memSizeMib: 256 };

const cache = process.env['BERTH_CACHE_DIR'] ?? '/var/cache/berth';
const cached = join(cache, 'test-templates');
const isCached = await access(cached).then(
  () => true,
  () => false,
);
await using host = await MachineHost.open();
const templates = paths.templates(host.dataDir);
if (isCached) await copyTemplates(cached, templates);
const former = isCached ? await readdir(templates) : [];
const driver = await host.driver({ hasTemplates: true });
const isCurrent = await driver.hasTemplate(SHAPE); // Begins to make it when it is not there.
if (!isCurrent) {
  await waitFor('the template', () => driver.hasTemplate(SHAPE), MADE_MS_MAX);
  for (const name of former) await rm(join(templates, name), { recursive: true });
}
await driver.close();
if (!isCurrent) {
  const partial = `${cached}.${process.pid}`;
  await mkdir(cache, { recursive: true });
  await copyTemplates(templates, partial);
  await rm(cached, { recursive: true, force: true });
  await rename(partial, cached);
}
process.stdout.write(`${cached}\n`);
