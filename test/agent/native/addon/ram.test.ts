/*
 * Saves the pages that a process changed in a private mapping, and loads them into another process.
 * saved, and put into another process.
 */
import { randomBytes } from 'node:crypto';
import { closeSync, fstatSync, ftruncateSync, openSync, readSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import * as fc from '../../../helpers/fast-check.ts';
import { native } from '../../../../agent/native/native.ts';
import {
  buildMappingProgram,
  MappingProcess,
  memoryFile,
  PAGE_BYTES,
  type MemoryFile,
} from '../../../helpers/private-memory.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';

const program = await buildMappingProgram();
test.after.always(() => program[Symbol.asyncDispose]());

const PAGES = 4096;
const KEY = Buffer.alloc(32, 7);

/** The template: random pages at the start and in the middle, the rest of it holes. */
function template(pageCount = PAGES): MemoryFile {
  const file = memoryFile(pageCount);
  writeSync(file.fd, randomBytes(64 * PAGE_BYTES), 0, 64 * PAGE_BYTES, 0);
  writeSync(file.fd, randomBytes(16 * PAGE_BYTES), 0, 16 * PAGE_BYTES, 1024 * PAGE_BYTES);
  native.sealMemory(file.fd);
  return file;
}

async function openFile(): Promise<AsyncDisposable & { fd: number; path: string }> {
  const directory = await temporaryDirectory();
  const path = join(directory.path, 'pages');
  const fd = openSync(path, 'w+');
  return {
    fd,
    path,
    [Symbol.asyncDispose]: async () => {
      closeSync(fd);
      await directory[Symbol.asyncDispose]();
    },
  };
}

const sizeOf = (fd: number): number => fstatSync(fd).size;

test('what one process changed is there in the next', async (t) => {
  using base = template();
  await using file = await openFile();
  await using first = await MappingProcess.start(program.path, base);
  await first.tell('fill', 10, 3, 1);
  await first.tell('fill', 500, 1200, 2);
  await first.tell('clear', 40, 2);
  await first.tell('fill', PAGES - 1, 1, 3);
  await first.tell('sum', 0, PAGES); // Reading changes nothing.
  t.is(await native.saveChangedPages(first.pid, base.mapping, base.fd, file.fd, KEY), 1206);

  await using second = await MappingProcess.start(program.path, base);
  t.not(await second.tell('sum', 0, PAGES), await first.tell('sum', 0, PAGES));
  t.is(await native.loadChangedPages(second.pid, base.mapping, file.fd, KEY), 1206);
  t.is(await second.tell('sum', 0, PAGES), await first.tell('sum', 0, PAGES));

  // Nobody's changes are in the template.
  await using third = await MappingProcess.start(program.path, base);
  await first.tell('revert', 0, PAGES);
  t.is(await third.tell('sum', 0, PAGES), await first.tell('sum', 0, PAGES));
});

test('pages that became those of the template again are left out, over many generations', async (t) => {
  using base = template();
  await using before = await openFile();
  await using origin = await MappingProcess.start(program.path, base);
  await origin.tell('fill', 0, 100, 1);
  await origin.tell('fill', 2000, 600, 2);
  await origin.tell('clear', 2100, 100); // A hole in the template.
  await origin.tell('revert', 0, 10);
  const { fd: from } = before;
  t.is(await native.saveChangedPages(origin.pid, base.mapping, base.fd, from, KEY), 590);
  t.is(await native.saveChangedPages(origin.pid, base.mapping, -1, from, KEY), 690);
  let former = await origin.tell('sum', 0, PAGES);
  let source = from;
  for (let generation = 0; generation < 5; generation++) {
    await using process = await MappingProcess.start(program.path, base);
    await using file = await openFile();
    await native.loadChangedPages(process.pid, base.mapping, source, KEY);
    t.is(await process.tell('sum', 0, PAGES), former);
    await process.tell('fill', 3000, 10, generation);
    former = await process.tell('sum', 0, PAGES);
    t.is(await native.saveChangedPages(process.pid, base.mapping, base.fd, file.fd, KEY), 600);
    const reopened = openSync(file.path, 'r');
    t.teardown(() => closeSync(reopened));
    source = reopened;
  }
});

test('any pattern of pages comes back, also where the kernel splits the mapping', async (t) => {
  using base = template();
  const runs = fc.array(
    fc.record({
      command: fc.constantFrom('fill', 'clear', 'revert', 'split', 'swap'),
      first: fc.nat(PAGES - 700),
      count: fc.integer({ min: 1, max: 700 }),
      seed: fc.nat(9),
    }),
    { maxLength: 12 },
  );
  const holed = fc.tuple(fc.boolean(), fc.boolean());
  const property = fc.asyncProperty(runs, holed, async (commands, [fromHoled, toHoled]) => {
    await using file = await openFile();
    await using from = await MappingProcess.start(program.path, base, fromHoled);
    await using to = await MappingProcess.start(program.path, base, toHoled);
    for (const { command, first, count, seed } of commands) {
      await from.tell(command, first, count, seed);
    }
    await native.saveChangedPages(from.pid, base.mapping, base.fd, file.fd, KEY);
    await native.loadChangedPages(to.pid, base.mapping, file.fd, KEY);
    t.is(await to.tell('sum', 0, PAGES), await from.tell('sum', 0, PAGES));
  });
  await fc.assert(property, { numRuns: 30 });
});

test('holes that are written to are not filled in the file when they are not mapped', async (t) => {
  using base = template();
  await using file = await openFile();
  const pagesOf = (): number => (fstatSync(base.fd).blocks * 512) / PAGE_BYTES;
  await using holed = await MappingProcess.start(program.path, base, true);
  const untouched = await holed.tell('sum', 0, PAGES);
  t.is(pagesOf(), 80);
  await using next = await MappingProcess.start(program.path, base, true);
  await holed.tell('fill', 0, PAGES, 1);
  t.is(await native.saveChangedPages(holed.pid, base.mapping, base.fd, file.fd, KEY), PAGES);
  await native.loadChangedPages(next.pid, base.mapping, file.fd, KEY);
  t.is(await next.tell('sum', 0, PAGES), await holed.tell('sum', 0, PAGES));
  t.is(pagesOf(), 80);

  await using whole = await MappingProcess.start(program.path, base);
  t.is(await whole.tell('sum', 0, PAGES), untouched);
  await whole.tell('fill', 0, PAGES, 1);
  t.is(pagesOf(), PAGES);
});

test('nothing changed is a file, too', async (t) => {
  using base = template();
  await using file = await openFile();
  await using process = await MappingProcess.start(program.path, base);
  t.is(await native.saveChangedPages(process.pid, base.mapping, base.fd, file.fd, KEY), 0);
  t.is(await native.loadChangedPages(process.pid, base.mapping, file.fd, KEY), 0);
});

test('a file that was cut, or in which anything flipped, is refused and nothing written', async (t) => {
  using base = template();
  await using file = await openFile();
  await using from = await MappingProcess.start(program.path, base);
  await from.tell('fill', 100, 300, 1);
  await from.tell('fill', 1000, 300, 2);
  const saved = await native.saveChangedPages(from.pid, base.mapping, base.fd, file.fd, KEY);
  await using to = await MappingProcess.start(program.path, base);
  const untouched = await to.tell('sum', 0, PAGES);
  const whole = Buffer.alloc(sizeOf(file.fd));
  readSync(file.fd, whole, 0, whole.length, 0);
  const refused = async (contents: Buffer): Promise<void> => {
    ftruncateSync(file.fd, 0);
    writeSync(file.fd, contents, 0, contents.length, 0);
    const loading = native.loadChangedPages(to.pid, base.mapping, file.fd, KEY);
    const error = await t.throwsAsync(loading, { instanceOf: Error });
    t.true(['EBADMSG', 'ESTALE'].includes((error as NodeJS.ErrnoException).code ?? ''));
  };

  const dataEnd = (1 + saved) * PAGE_BYTES;
  for (const length of [0, 8, 87, 88, PAGE_BYTES, dataEnd - 1, dataEnd, whole.length - 1]) {
    await refused(whole.subarray(0, length));
  }
  await refused(Buffer.concat([whole, Buffer.alloc(8)]));
  const inHeader = fc.nat(87);
  const inData = fc.integer({ min: PAGE_BYTES, max: dataEnd - 1 });
  const inIndex = fc.integer({ min: dataEnd, max: whole.length - 1 });
  const place = fc.oneof(inHeader, inData, inIndex);
  const property = fc.asyncProperty(place, fc.nat(7), async (at, bit) => {
    const flipped = Buffer.from(whole);
    flipped.writeUInt8(flipped.readUInt8(at) ^ (1 << bit), at);
    await refused(flipped);
  });
  await fc.assert(property, { numRuns: 150 });
  t.is(await to.tell('sum', 0, PAGES), untouched);
});

test('a file of another template, or of a machine of another size, is refused', async (t) => {
  using base = template();
  await using file = await openFile();
  await using from = await MappingProcess.start(program.path, base);
  await from.tell('fill', 100, 3, 1);
  await native.saveChangedPages(from.pid, base.mapping, base.fd, file.fd, KEY);
  const other = Buffer.alloc(32, 8);
  const stale = native.loadChangedPages(from.pid, base.mapping, file.fd, other);
  await t.throwsAsync(stale, { code: 'ESTALE' });
  using larger = template(PAGES + 1);
  await using to = await MappingProcess.start(program.path, larger);
  const loading = native.loadChangedPages(to.pid, larger.mapping, file.fd, KEY);
  await t.throwsAsync(loading, { code: 'ESTALE' });
});

test('only a process that maps all of this very file is touched', async (t) => {
  using base = template();
  using other = template();
  await using file = await openFile();
  await using mapping = await MappingProcess.start(program.path, base);
  const save = (pid: number, of: MemoryFile['mapping']): Promise<number> =>
    native.saveChangedPages(pid, of, -1, file.fd, KEY);
  await t.throwsAsync(save(mapping.pid, other.mapping), { code: 'ENOENT' });
  await t.throwsAsync(save(process.pid, base.mapping), { code: 'ENOENT' });
  await t.throwsAsync(save(2 ** 30, base.mapping), { code: 'ESRCH' });
  await t.throwsAsync(save(0, base.mapping), { code: 'EINVAL' });
  const smaller = { ...base.mapping, sizeBytes: (PAGES - 1) * PAGE_BYTES };
  await t.throwsAsync(save(mapping.pid, smaller), { code: 'EINVAL' });
  await mapping.tell('unmap', 100, 1);
  await t.throwsAsync(save(mapping.pid, base.mapping), { code: 'EINVAL' });
});

test('a full disk is told', async (t) => {
  using base = template();
  await using mapping = await MappingProcess.start(program.path, base);
  await mapping.tell('fill', 100, 3, 1);
  const full = openSync('/dev/full', 'r+');
  t.teardown(() => closeSync(full));
  const saving = native.saveChangedPages(mapping.pid, base.mapping, base.fd, full, KEY);
  await t.throwsAsync(saving, { code: 'ENOSPC' });
});

test('a copy of memory keeps its holes, makes some of zeros, and has the same hash', async (t) => {
  using base = template();
  await using file = await openFile();
  using copy = memoryFile(PAGES);
  using holes = memoryFile(PAGES);
  const size = base.mapping.sizeBytes;
  const hash = await native.copyMemory(base.fd, file.fd, size);
  t.is(fstatSync(file.fd).blocks * 512, 80 * PAGE_BYTES);
  t.is(sizeOf(file.fd), size);
  writeSync(file.fd, Buffer.alloc(PAGE_BYTES), 0, PAGE_BYTES, 2000 * PAGE_BYTES);
  t.is(await native.copyMemory(file.fd, copy.fd, size), hash);
  t.is(fstatSync(copy.fd).blocks * 512, 80 * PAGE_BYTES);
  t.is(await native.copyMemory(copy.fd, -1, size), hash);
  t.not(await native.copyMemory(holes.fd, -1, size), hash);
  writeSync(copy.fd, Buffer.from([1]), 0, 1, 3000 * PAGE_BYTES);
  t.not(await native.copyMemory(copy.fd, -1, size), hash);
  // Shorter than it should be: that is no template's memory.
  await t.throwsAsync(native.copyMemory(file.fd, -1, size + PAGE_BYTES * 256), { code: 'EBADMSG' });
});

test('sealed memory is changed by nobody', (t) => {
  using base = template();
  t.throws(() => writeSync(base.fd, Buffer.alloc(1), 0, 1, 0), { code: 'EPERM' });
  t.throws(() => ftruncateSync(base.fd, 0), { code: 'EPERM' });
  t.throws(() => native.sealMemory(base.fd), { code: 'EPERM' });
  t.true(native.isSealed(base.fd));
  using open = memoryFile(1);
  t.false(native.isSealed(open.fd));
  t.false(native.isSealed(0));
});

test('what is no memory, mapping or key is refused', (t) => {
  const untyped = native as unknown as Record<string, (...args: unknown[]) => unknown>;
  const mapping = { device: 1n, inode: 1n, sizeBytes: PAGE_BYTES };
  for (const name of ['newMemory', 'sealMemory', 'copyMemory', 'saveChangedPages']) {
    t.throws(() => untyped[name]?.());
    t.throws(() => untyped[name]?.({}, [], null, 7, 8));
  }
  t.throws(() => native.newMemory('x', PAGE_BYTES + 1), { code: 'EINVAL' });
  t.throws(() => native.newMemory('x', 0), { code: 'EINVAL' });
  const short = { ...mapping, sizeBytes: -1 };
  t.throws(() => native.saveChangedPages(1, short, -1, 1, KEY), { code: 'EINVAL' });
  t.throws(() => native.loadChangedPages(1, mapping, 1, KEY.subarray(1)), { code: 'EINVAL' });
});
