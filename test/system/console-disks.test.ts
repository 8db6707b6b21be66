/* Disks and their files in the console: Chromium on a real stack. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdir, open, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { MiB } from '../../shared/units.ts';
import { ConsolePage } from '../helpers/console-page.ts';
import { checkNoProblems, consoleTest } from '../helpers/console-test.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { isFull } from '../helpers/full.ts';
import { waitFor } from '../helpers/wait.ts';

const LARGE_BYTES = isFull ? 1024 * MiB : 40 * MiB;
const test = consoleTest({ DISK_SIZE_BYTES: String(2 * LARGE_BYTES + 256 * MiB) });
/** The folder on a page of a disk, where files can be dropped. */
const FOLDER = '.drop';
const EDITOR = '.cm-content';
const UPLOADS = '.uploads';
/** The smallest picture: one pixel. */
const PIXEL = 'R0lGODlhAQABAIAAAP8AAP///yH5BAAAAAAALAAAAAABAAEAAAICRAEAOw==';

const isRefusal = (problem: string): boolean => /status of 412/u.test(problem);

/** Lines of the editor. */
const edited = (page: ConsolePage): Promise<unknown> =>
  page.page.evaluate(
    `[...document.querySelectorAll('.cm-line')].map((each) => each.textContent).join('\\n')`,
  );

/** Types where the cursor is: at the beginning, or where this page has typed before. */
async function typeInEditor(page: ConsolePage, text: string): Promise<void> {
  await page.until(
    'the editor',
    `(() => { const found = document.querySelector('${EDITOR}');
    found?.focus(); return document.activeElement === found && found !== null; })()`,
  );
  await page.type(text);
}

test.serial('folders are made, and files dropped into them are uploaded', async (t) => {
  const { page, api, directory } = t.context;
  const disk = await createDisk(api, { name: 'dropped' });
  const file = join(directory, 'notes.txt');
  await writeFile(file, 'from a file\n');
  await page.goTo(`/disks/${disk.id}`);
  await page.shows('This folder is empty.');
  await page.press('New folder');
  await page.fill('Name', 'a b&c');
  await page.press('Create');
  await page.press('a b&c', { role: 'link' });
  await page.shows('This folder is empty.');
  await page.drop(FOLDER, [file]);
  await page.shows('notes.txt is uploaded.');
  const { stdout } = await exec(api, disk.id, 'find . -type f; cat "a b&c/notes.txt"');
  t.is(stdout, './a b&c/notes.txt\nfrom a file\n');
  await page.press('dropped', { role: 'link' });
  await page.until('the folder above', `Boolean(byName('a b&c', { role: 'link' }))`);
  checkNoProblems(t);
});

test.serial('a large upload shows its progress, and goes on after a cut', async (t) => {
  const { page, api, directory, toControl } = t.context;
  const disk = await createDisk(api, { name: 'large' });
  const path = join(directory, 'large.bin');
  await using file = await open(path, 'w');
  const block = Buffer.alloc(MiB);
  for (let n = 0; n < LARGE_BYTES / MiB; n += 1) {
    block.fill(`${n} of this file `);
    await file.write(block);
  }
  await page.goTo(`/disks/${disk.id}`);
  await page.shows('This folder is empty.');
  await page.drop(FOLDER, [path]);
  await page.reads(UPLOADS, /large\.bin\s+[1-9][\d.]* MiB of/u);
  toControl.cut();
  await waitFor('the cut to be noticed', async () =>
    page.page.problems.some((problem) => /ERR_CONNECTION|ERR_EMPTY/u.test(problem)),
  );
  toControl.mend();
  await page.shows('large.bin is uploaded.', isFull ? 600_000 : undefined);
  const hash = createHash('sha256');
  await pipeline(createReadStream(path), hash);
  const { stdout } = await exec(api, disk.id, 'sha256sum large.bin');
  t.is(stdout, `${hash.digest('hex')}  large.bin\n`);
  page.page.problems.length = 0; // The cut.
});

test.serial('an upload that was stopped goes on with the parts that are missing', async (t) => {
  const { page, api, directory } = t.context;
  const disk = await createDisk(api, { name: 'stopped' });
  const path = join(directory, 'parts.bin');
  const bytes = Buffer.alloc(40 * MiB, 'parts of a file ');
  await writeFile(path, bytes);
  await page.goTo(`/disks/${disk.id}`);
  await page.shows('This folder is empty.');
  // Slow enough for it to be stopped in the middle.
  const slow = { offline: false, latency: 0, downloadThroughput: -1 };
  await page.page.send('Network.emulateNetworkConditions', {
    ...slow,
    uploadThroughput: 12 * MiB,
  });
  await page.drop(FOLDER, [path]);
  // Three parts of 8 MiB go at a time: the first is complete.
  await page.reads(UPLOADS, /(?:2[5-9]|3\d)(?:\.\d)? MiB of 40 MiB/u);
  await page.press('Stop');
  await page.reads(UPLOADS, /Stopped\./u);
  await page.press('Continue');
  await page.press('Stop');
  await page.reads(UPLOADS, /Stopped\./u);
  await page.page.send('Network.emulateNetworkConditions', { ...slow, uploadThroughput: -1 });
  // The page knows it again after a reload.
  await page.goTo(`/disks/${disk.id}`);
  await page.shows('This folder is empty.');
  page.page.requests.length = 0;
  await page.drop(FOLDER, [path]);
  await page.shows('parts.bin is uploaded.');
  const again = page.page.requests.filter((url) => url.includes('partNumber='));
  t.true(again.length > 0 && again.length < 5, again.join('\n'));
  const { stdout } = await exec(api, disk.id, 'sha256sum < parts.bin');
  t.is(stdout, `${createHash('sha256').update(bytes).digest('hex')}  -\n`);
  page.page.problems.length = 0;
});

test.serial('a file is renamed, downloaded and deleted, and no name is taken twice', async (t) => {
  const { page, api, directory } = t.context;
  const disk = await createDisk(api, { name: 'files' });
  await exec(api, disk.id, 'echo one > one.txt; echo two > two.txt; mkdir old; echo 3 > old/3');
  await page.goTo(`/disks/${disk.id}`);
  await page.press('Rename', { row: 'one.txt' });
  await page.fill('Path on the disk', 'two.txt');
  await page.press('Rename');
  await page.shows('two.txt already exists: choose another name.');
  await page.fill('Path on the disk', 'old/first.txt');
  await page.press('Rename');
  await page.until('it to be gone', `!document.body.innerText.includes('one.txt')`);
  const downloads = join(directory, 'downloads');
  await mkdir(downloads);
  const behaviour = { behavior: 'allow', downloadPath: downloads };
  await page.page.send('Browser.setDownloadBehavior', behaviour);
  await page.press('Download', { row: 'two.txt' });
  await waitFor('the download', async () => (await readdir(downloads)).includes('two.txt'));
  t.is(await readFile(join(downloads, 'two.txt'), 'utf8'), 'two\n');
  await page.press('Delete', { row: 'old' });
  await page.shows('The folder and everything in it will be deleted for good.');
  await page.press('Delete');
  await page.until('the folder to be gone', `!byName('old', { role: 'link' })`);
  await page.press('Delete', { row: 'two.txt' });
  await page.press('Delete');
  await page.shows('This folder is empty.');
  t.is((await exec(api, disk.id, 'find . -type f')).stdout, '');
  checkNoProblems(t);
});

test.serial(
  'line ends of a file stay as they are, and a file with several kinds is not changed',
  async (t) => {
    const { page, api } = t.context;
    const disk = await createDisk(api, { name: 'lines' });
    await exec(api, disk.id, `printf 'a\\r\\nb\\r\\n' > dos.txt; printf 'a\\r\\nb\\n' > mixed.txt`);
    await page.goTo(`/disks/${disk.id}`);
    await page.press('dos.txt', { role: 'link' });
    await typeInEditor(page, 'x');
    await page.press('Save');
    await page.shows('dos.txt is saved.');
    await page.press('Close', { role: 'link' });
    await page.press('mixed.txt', { role: 'link' });
    await page.shows('This file cannot be edited here');
    await typeInEditor(page, 'x');
    t.is(await edited(page), 'a\nb\n');
    const { stdout } = await exec(api, disk.id, 'cat dos.txt mixed.txt');
    t.is(stdout, 'xa\r\nb\r\na\r\nb\n');
    checkNoProblems(t);
  },
);

test.serial('text, pictures and tables are shown as what they are', async (t) => {
  const { page, api } = t.context;
  const disk = await createDisk(api, { name: 'shown' });
  const table = `printf 'name,"a, b"\\n"<b>x</b>",2\\n' > table.csv`;
  const others = `echo ${PIXEL} | base64 -d > dot.gif; printf 'a\\0b' > raw; echo 'x = 1' > a.py`;
  await exec(api, disk.id, `${table}; ${others}`);
  await page.goTo(`/disks/${disk.id}`);
  await page.press('a.py', { role: 'link' });
  await page.until('the text', `document.querySelector('${EDITOR}')?.innerText.includes('x = 1')`);
  await page.press('Close', { role: 'link' });
  await page.press('dot.gif', { role: 'link' });
  await page.until('the picture', `document.querySelector('.preview img')?.naturalWidth === 1`);
  await page.press('Close', { role: 'link' });
  await page.press('table.csv', { role: 'link' });
  const cells = `[...document.querySelectorAll('.preview th, .preview td')]
    .map((each) => each.textContent).join('|')`;
  await page.until('the table', `(${cells}) === 'name|a, b|<b>x</b>|2'`);
  await page.press('Close', { role: 'link' });
  await page.press('raw', { role: 'link' });
  await page.shows('No preview: this file is not text, or it is too large (3 B).');
  t.deepEqual(await page.violations(), []);
  checkNoProblems(t);
});

test.serial('of two people who edit one file, the second learns of the first', async (t) => {
  const { page, api, directory } = t.context;
  const disk = await createDisk(api, { name: 'edited' });
  await exec(api, disk.id, 'echo first > shared.txt');
  await mkdir(join(directory, 'other'));
  await using other = await ConsolePage.open(join(directory, 'other'), page.baseUrl);
  await other.signInAs(api);
  const address = `/disks/${disk.id}?file=shared.txt`;
  for (const each of [page, other]) {
    await each.goTo(address);
    await each.until(
      'the text',
      `document.querySelector('${EDITOR}')?.innerText.includes('first')`,
    );
  }
  await typeInEditor(other, 'theirs ');
  await other.control('s');
  await other.shows('shared.txt is saved.');
  await typeInEditor(page, 'mine ');
  await page.press('Save');
  await page.shows('Somebody else has changed this file');
  t.is((await exec(api, disk.id, 'cat shared.txt')).stdout, 'theirs first\n');
  await page.press('Load the version on the disk');
  await page.until('theirs', `document.querySelector('${EDITOR}')?.innerText.includes('theirs')`);
  t.is(await edited(page), 'theirs first\n');
  await typeInEditor(page, 'both, ');
  await page.press('Save');
  await page.shows('shared.txt is saved.');
  t.is((await exec(api, disk.id, 'cat shared.txt')).stdout, 'both, theirs first\n');
  // The other one has the older text still, and means it.
  await typeInEditor(other, 'last ');
  await other.press('Save');
  await other.press('Overwrite it');
  await other.hides('Somebody else has changed this file');
  t.is((await exec(api, disk.id, 'cat shared.txt')).stdout, 'theirs last first\n');
  t.true([...page.page.problems.splice(0), ...other.page.problems].every(isRefusal));
});

test.serial('a new file is made, and takes nobody’s place', async (t) => {
  const { page, api } = t.context;
  const disk = await createDisk(api, { name: 'made' });
  await exec(api, disk.id, 'echo kept > taken.md');
  await page.goTo(`/disks/${disk.id}`);
  await page.press('New file');
  await page.fill('Path on the disk', 'taken.md');
  await typeInEditor(page, '# Title');
  for (const theme of ['Dark colours', 'Light colours']) await page.press(theme);
  await page.until('the other theme', `Boolean(byName('Dark colours'))`);
  await page.until('the text', `document.querySelector('${EDITOR}')?.innerText === '# Title'`);
  await page.press('Save');
  await page.shows('taken.md already exists: choose another name.');
  await page.press('Close');
  await page.fill('Path on the disk', 'folder/new.md');
  await page.press('Save');
  await page.shows('folder/new.md is saved.');
  t.is((await exec(api, disk.id, 'cat taken.md folder/new.md')).stdout, 'kept\n# Title');
  page.page.problems.length = 0; // 412.
});

test.serial('a file is shared with a link that works for anybody', async (t) => {
  const { page, api } = t.context;
  const disk = await createDisk(api, { name: 'shared' });
  await exec(api, disk.id, 'echo public > a.txt');
  await page.goTo(`/disks/${disk.id}`);
  await page.press('Share', { row: 'a.txt' });
  await page.press('Create link');
  const url = await page.until<string>('the link', `scope().querySelector('code')?.textContent`);
  t.is(await (await fetch(url)).text(), 'public\n');
  checkNoProblems(t);
});

test.serial('a search leads to the line of the file', async (t) => {
  const { page, api } = t.context;
  const disk = await createDisk(api, { name: 'searched' });
  await exec(api, disk.id, 'mkdir d; seq 500 | sed "s/^400$/here it is/" > d/long.txt');
  await page.goTo(`/disks/${disk.id}/search`);
  await page.fill('Pattern, as for grep -E', 'here (it|is)');
  await page.press('Search', { role: 'button', region: 'Search in files' });
  await page.press('d/long.txt:400');
  const line = `document.querySelector('.cm-activeLine')`;
  await page.until('the line', `${line}?.textContent === 'here it is'`);
  const isSeen = `(() => { const { top, bottom } = ${line}.getBoundingClientRect();
    const box = document.querySelector('.cm-scroller').getBoundingClientRect();
    return top >= box.top && bottom <= box.bottom; })()`;
  await page.until('it to be seen', isSeen);
  await page.goTo(`/disks/${disk.id}/search`);
  await page.fill('Pattern, as for grep -E', '(');
  await page.press('Search', { role: 'button', region: 'Search in files' });
  await page.reads('.problem', /./u);
  page.page.problems.length = 0; // 400.
  t.pass();
});

test.serial('matches of a search are there while it goes on', async (t) => {
  const { page, api } = t.context;
  const disk = await createDisk(api, { name: 'endless' });
  // The sparse file takes longer to read than a search may last.
  await exec(api, disk.id, 'for i in {1..200}; do echo found > $i; done; truncate -s 8T endless');
  await page.goTo(`/disks/${disk.id}/search`);
  await page.fill('Pattern, as for grep -E', 'found');
  await page.press('Search', { role: 'button', region: 'Search in files' });
  await page.reads('[role=status]', /Searching … [1-9]\d* match(?:es)? so far/u);
  t.regex(await page.read('.matches'), /found/u);
  await page.goTo('/disks'); // Leaving the page ends the search.
  await api.call('DELETE', `/api/disks/${disk.id}`);
  checkNoProblems(t);
});

test.serial('a command is run, with what it wrote, its time, and those before it', async (t) => {
  const { page, api } = t.context;
  const disk = await createDisk(api, { name: 'run-on' });
  await page.goTo(`/disks/${disk.id}/run`);
  for (const command of ['echo first', 'echo second >&2; exit 3']) {
    await page.fill('Command', command);
    await page.press('Run', { role: 'button', region: 'Run a command' });
    await page.until(
      command,
      `document.querySelector('.run-head code')?.textContent
      === ${JSON.stringify(command)}`,
    );
  }
  const results = `[...document.querySelectorAll('.run-result')].map((each) => each.innerText)`;
  const [second = '', first = ''] = (await page.page.evaluate(results)) as string[];
  t.regex(second, /echo second[^]*exit code 3[^]*\d m?s[^]*second/u);
  t.regex(first, /echo first[^]*exit code 0[^]*\d m?s[^]*first/u);
  t.deepEqual(await page.violations(), []);
  checkNoProblems(t);
});

test.serial('a user’s token is shown once, and the user can be removed', async (t) => {
  const { page, api } = t.context;
  const disk = await createDisk(api, { name: 'tokens' });
  await page.goTo(`/disks/${disk.id}/access`);
  await page.fill('Name of the new user', 'reader');
  await page.press('Add user');
  await page.shows('it is not shown again');
  const token = (await page.read('.secret code')).trim();
  await page.page.send('Browser.grantPermissions', {
    permissions: ['clipboardReadWrite', 'clipboardSanitizedWrite'],
  });
  await page.press('Copy token');
  await page.shows('Copied.');
  t.is(await page.page.evaluate('navigator.clipboard.readText()'), token);
  t.regex(token, /^dt-/u);
  await page.goTo(`/disks/${disk.id}/access`);
  await page.press('Remove reader');
  t.false(((await page.page.evaluate('document.body.innerHTML')) as string).includes(token));
  await page.press('Remove');
  await page.until('the user to be gone', `!byName('Remove reader')`);
  await page.fill('Addresses from which tokens work', '10.1.2.0/24');
  await page.press('Save', { region: 'Allowed addresses' });
  await page.shows('The allowed addresses apply from the next request on.');
  const { allowedIps } = await api.data<{ allowedIps: string[] }>('GET', `/api/disks/${disk.id}`);
  t.deepEqual(allowedIps, ['10.1.2.0/24']);
  checkNoProblems(t);
});
