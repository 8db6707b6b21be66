/* How an agent finds the template of a machine that a former one started. */
import { randomBytes } from 'node:crypto';
import { mkdir, open, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import {
  sha256,
  Template,
  TemplateError,
} from '../../../../../agent/machines/qemu/memory/template.ts';
import {
  recordTemplate,
  templateOfRecovered,
} from '../../../../../agent/machines/qemu/memory/templates-in-use.ts';
import { native } from '../../../../../agent/native/native.ts';
import { MiB } from '../../../../../shared/units.ts';
import { temporaryDirectory } from '../../../../helpers/temporary.ts';

const KEY = '1'.repeat(64);

/** A template, and the run directory of a machine that was started from it. */
async function newMachine() {
  const home = await temporaryDirectory();
  const [directory, runDir] = [join(home.path, 'template'), join(home.path, 'run')];
  for (const path of [directory, runDir]) await mkdir(path);
  const devices = randomBytes(100);
  await writeFile(join(directory, 'devices'), devices);
  await writeFile(join(directory, 'ram'), randomBytes(MiB));
  const ram = await open(join(directory, 'ram'));
  const hash = await native.copyMemory(ram.fd, -1, MiB);
  await ram.close();
  const ramHash = hash.toString(16).padStart(16, '0');
  const hashes = { ramHash, devicesHash: sha256(devices) };
  await recordTemplate(runDir, { key: KEY, contents: `${ramHash} ${hashes.devicesHash}` });
  const manifest = join(directory, 'template.json');
  await writeFile(manifest, JSON.stringify({ version: 1, key: KEY, ramBytes: MiB, ...hashes }));
  const template = templateOfRecovered(runDir, (key) => Template.open(directory, key));
  return Object.assign(home, { directory, devices, manifest, template });
}

test('a template is found again once the storage tells of it', async (t) => {
  await using machine = await newMachine();
  const { manifest, template } = machine;
  await rename(manifest, `${manifest}.aside`);
  await symlink(manifest, manifest); // Reading it fails, with ELOOP.
  await t.throwsAsync(template, { code: 'ELOOP' });
  await t.throwsAsync(template, { code: 'ELOOP' });
  await rm(manifest);
  await rename(`${manifest}.aside`, manifest);
  using found = await template();
  t.is(found.key, KEY);
  t.is(await template(), found, 'it is read once');
});

test('a template that was damaged stays lost, whatever is made in its place', async (t) => {
  await using machine = await newMachine();
  const { directory, devices, template } = machine;
  await writeFile(join(directory, 'devices'), randomBytes(100));
  await t.throwsAsync(template, { instanceOf: TemplateError });
  await writeFile(join(directory, 'devices'), devices);
  using whole = await Template.open(directory, KEY);
  t.is(whole.key, KEY);
  await t.throwsAsync(template, { instanceOf: TemplateError });
});

test('a template that was made anew with other contents is not that of the machine', async (t) => {
  await using machine = await newMachine();
  const { directory, manifest, template } = machine;
  const devices = randomBytes(100);
  await writeFile(join(directory, 'devices'), devices);
  const text = await readFile(manifest, 'utf8');
  await writeFile(
    manifest,
    text.replace(/"devicesHash":"\w+"/u, `"devicesHash":"${sha256(devices)}"`),
  );
  using whole = await Template.open(directory, KEY);
  t.is(whole.key, KEY);
  await t.throwsAsync(template, { instanceOf: TemplateError, message: /made anew/u });
});
