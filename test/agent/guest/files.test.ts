/*
 * Operations on files of the guest agent, over a real channel (agent/guest/files.c and beside it).
 */
import { randomBytes, randomUUID } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import {
  readEvent,
  readList,
  readResult,
  readStat,
} from '../../../agent/edge/files/worker-answers.ts';
import type { GuestChannel } from '../../../agent/machines/guest-link/guest-channel.ts';
import { GuestLink } from '../../../agent/machines/guest-link/guest-link.ts';
import type { FileWorker } from '../../../agent/sandboxes/files/file-worker.ts';
import { SandboxFiles } from '../../../agent/sandboxes/files/sandbox-files.ts';
import { AppError } from '../../../shared/errors.ts';
import type { FileOperation } from '../../../shared/links/files-protocol.ts';
import { isFull } from '../../helpers/full.ts';
import { collect, nativeGuestBuilds, processSpec, startConfigured } from '../../helpers/guest.ts';
import { waitFor } from '../../helpers/wait.ts';

/** A link with one channel that is there already. */
class OpenLink extends GuestLink {
  readonly channel: GuestChannel;
  readonly processes = [];
  constructor(channel: GuestChannel) {
    super();
    this.channel = channel;
  }
}

const shared = await Promise.all(
  nativeGuestBuilds.map(async (build) => {
    const prepare = [
      'mount -t tmpfs none /mnt',
      'mkdir /mnt/other',
      'mount -t tmpfs none /mnt/other',
    ];
    const settings = { user: '1000:1001' };
    const started = await startConfigured({ build, prepare, settings });
    const files = new SandboxFiles();
    files.connect(new OpenLink(started.channel));
    return { build, started, files };
  }),
);
test.after.always(() => Promise.all(shared.map(({ started }) => started[Symbol.asyncDispose]())));

const encode = (path: string | Buffer): string => Buffer.from(path).toString('base64url');
const codeOf = (error: unknown): string =>
  error instanceof AppError ? error.code : `not an AppError: ${String(error)}`;

const lengthOf = (bytes: Buffer): Buffer => {
  const length = Buffer.alloc(4);
  length.writeUInt32LE(bytes.length);
  return length;
};

const collectEvents = async (
  worker: FileWorker,
  seen: Set<string>,
  kinds: string[],
): Promise<void> => {
  for (;;) {
    const { kind, path } = await readEvent(worker);
    kinds.push(kind);
    seen.add(`${kind} ${path.toString()}`);
    if (kind === 'end') return;
  }
};

for (const {
  build,
  started: { channel },
  files,
} of shared) {
  const name = (title: string): string => `${build.name}: ${title}`;
  const newDirectory = async (): Promise<string> => {
    const path = `/mnt/${randomUUID()}`;
    await shell(`mkdir ${path}`);
    return path;
  };
  const shell = async (command: string): Promise<string> =>
    (await collect(channel, processSpec(command, { user: '0' }))).text;

  /** Runs an operation to the result that it begins its answer with. */
  const tried = async (operation: FileOperation, more = {}): Promise<string> => {
    await using worker = await files.begin(operation, more);
    return await readResult(worker).then(
      () => 'done',
      (error: unknown) => codeOf(error),
    );
  };

  const write = async (
    operation: Omit<FileOperation, 'type' | 'path'> & { path: string | Buffer },
    content: Buffer,
    more = {},
  ): Promise<string> => {
    const path = encode(operation.path);
    await using worker = await files.begin(
      { follow: true, ...operation, type: 'write', path },
      more,
    );
    try {
      await readResult(worker);
      if ((await worker.takeNumber(1)) !== 0) await readStat(worker);
      for (let at = 0; at < content.length; at += 60_000) {
        const piece = content.subarray(at, at + 60_000);
        await worker.write(Buffer.concat([lengthOf(piece), piece]));
      }
      await worker.write(Buffer.alloc(4));
      await readResult(worker, true);
      await readStat(worker);
      return 'done';
    } catch (error) {
      return codeOf(error);
    }
  };

  const read = async (path: string | Buffer, from: number, length: number): Promise<Buffer> => {
    await using worker = await files.begin({ type: 'read', path: encode(path), follow: true });
    await readResult(worker);
    await readStat(worker);
    const range = Buffer.alloc(16);
    range.writeBigUInt64LE(BigInt(from));
    range.writeBigUInt64LE(BigInt(length), 8);
    await worker.write(range);
    return await worker.take(length);
  };

  /** Watches a directory with all below it, from now on. */
  const watchAll = async (directory: string) => {
    const seen = new Set<string>();
    const kinds: string[] = [];
    const operation = { type: 'watch' as const, path: encode(directory), recursive: true };
    const worker = await files.begin(operation);
    await readResult(worker);
    const following = collectEvents(worker, seen, kinds).catch(() => undefined);
    await waitFor('ready', async () => seen.has('ready '));
    return { seen, kinds, worker, following };
  };

  const list = async (
    path: string,
    { limit = 1000, ...more }: Partial<FileOperation> = {},
  ): Promise<string[]> => {
    const all: string[] = [];
    let after: string | undefined;
    for (;;) {
      const page = after === undefined ? {} : { after };
      const operation = { ...more, ...page, limit, type: 'list' as const, path: encode(path) };
      await using worker = await files.begin(operation);
      await readResult(worker);
      const { entries, isCut } = await readList(worker, limit);
      all.push(...entries.map((entry) => entry.path.toString('latin1')));
      if (!isCut) return all;
      after = entries.at(-1)?.path.toString('base64url') ?? after;
    }
  };

  test(name('a file is written and read, whatever bytes its path has'), async (t) => {
    const directory = await newDirectory();
    const path = Buffer.from(`${directory}/a b\n\xff`, 'latin1');
    const content = randomBytes(1_000_000);
    t.is(await write({ path }, content), 'done');
    t.deepEqual(await read(path, 0, content.length), content);
    t.deepEqual(await read(path, 999_990, 10), content.subarray(999_990));
    t.is(await shell(`stat -c %a:%u:%g ${directory}/*`), '644:1000:1001\n');
    t.is(await write({ path: `${directory}/own`, mode: 0o4751, uid: 7, gid: 8 }, content), 'done');
    t.is(await shell(`stat -c %a:%u:%g ${directory}/own`), '4751:7:8\n');
    t.is(await write({ path: `${directory}/own` }, Buffer.from('x')), 'done');
    t.is(
      await shell(`stat -c %a:%u:%g:%s ${directory}/own`),
      '751:7:8:1\n',
      'owner and mode stay, set-id bits do not',
    );
  });

  test(name('an upload that is cut leaves the old file and nothing else'), async (t) => {
    const directory = await newDirectory();
    await shell(`echo old > ${directory}/f`);
    {
      await using worker = await files.begin({ type: 'write', path: encode(`${directory}/f`) });
      await readResult(worker);
      await worker.write(Buffer.from([5, 0, 0, 0, 1, 2]));
    }
    await waitFor(
      'the worker to end',
      async () => (await shell('ls /proc/[0-9]*/exe | wc -l')) !== '',
    );
    t.is(await shell(`cat ${directory}/f; ls -A ${directory}`), 'old\nf\n');
  });

  test(name('preconditions hold until the end'), async (t) => {
    const path = `${await newDirectory()}/f`;
    const content = Buffer.from('new');
    t.is(await write({ path }, content, { exclusive: true }), 'done');
    t.is(await write({ path }, content, { exclusive: true }), 'file_exists');
    await using worker = await files.begin(
      { type: 'write', path: encode(path) },
      { unchanged: true },
    );
    await readResult(worker);
    await worker.takeNumber(1);
    await readStat(worker);
    await shell(`echo other > ${path}`);
    await worker.write(Buffer.alloc(4));
    t.is(codeOf(await t.throwsAsync(readResult(worker, true))), 'precondition_failed');
    t.is(await shell(`cat ${path}`), 'other\n');
  });

  test(name('links are followed or not, and none of /proc is'), async (t) => {
    const directory = await newDirectory();
    await shell(`cd ${directory} && ln -s target link && ln -s link chain && ln -s loop loop`);
    t.is(await write({ path: `${directory}/chain` }, Buffer.from('through')), 'done');
    t.is(
      await shell(`cd ${directory} && cat target && readlink chain`),
      'through\nlink\n'.replace('\n', ''),
    );
    t.is(await write({ path: `${directory}/chain`, follow: false }, Buffer.from('own')), 'done');
    t.is(await shell(`cd ${directory} && cat chain target && test ! -L chain`), 'ownthrough');
    t.is(await tried({ type: 'read', path: encode(`${directory}/link`) }), 'link_not_followed');
    t.is(
      await tried({ type: 'write', path: encode(`${directory}/loop`), follow: true }),
      'link_not_followed',
    );
    for (const path of [
      '/proc/1/root/etc/passwd',
      '/proc/self/fd/0',
      '/proc/self/exe',
      '/proc/1/cwd/x',
    ]) {
      const follow = true;
      t.is(await tried({ type: 'read', path: encode(path), follow }), 'link_not_followed', path);
      t.is(await tried({ type: 'write', path: encode(path), follow }), 'link_not_followed', path);
    }
  });

  test(name('what is no file is refused, not waited for'), async (t) => {
    const directory = await newDirectory();
    await shell(`cd ${directory} && mkfifo fifo && mkdir full && touch full/x`);
    for (const type of ['read', 'write'] as const) {
      t.is(await tried({ type, path: encode(`${directory}/fifo`) }), 'not_a_file');
      t.is(await tried({ type, path: encode('/dev/null') }), 'not_a_file');
      t.is(await tried({ type, path: encode(directory) }), 'is_a_directory');
    }
    const refusals: [FileOperation, string][] = [
      [{ type: 'read', path: encode(`${directory}/none`) }, 'not_found'],
      [{ type: 'read', path: encode(`${directory}/fifo/x`) }, 'not_a_directory'],
      [{ type: 'write', path: encode(`${directory}/no/x`) }, 'not_found'],
      [{ type: 'write', path: encode(`${directory}/${'x'.repeat(256)}`) }, 'bad_request'],
      [{ type: 'remove', path: encode(`${directory}/full`) }, 'directory_not_empty'],
      [{ type: 'remove', path: encode('/') }, 'file_busy'],
      [{ type: 'remove', path: encode('/mnt/other'), recursive: true }, 'file_busy'],
      [{ type: 'makeDirectory', path: encode(`${directory}/fifo`) }, 'file_exists'],
      [{ type: 'makeDirectory', path: encode(`${directory}/full`) }, 'file_exists'],
      [
        { type: 'move', path: encode(`${directory}/full`), to: encode('/mnt/other/full') },
        'other_file_system',
      ],
      [
        { type: 'move', path: encode(`${directory}/full`), to: encode(`${directory}/fifo`) },
        'file_exists',
      ],
    ];
    for (const [operation, code] of refusals) {
      t.is(await tried(operation), code, `${operation.type} ${code}`);
    }
  });

  test(name('directories are made, moved and removed'), async (t) => {
    const directory = await newDirectory();
    const deep = `${directory}/a/b/c`;
    t.is(await tried({ type: 'makeDirectory', path: encode(deep) }), 'not_found');
    const asked = { parents: true, mode: 0o2750, uid: 5, gid: 6 };
    t.is(await tried({ type: 'makeDirectory', path: encode(`${deep}/`), ...asked }), 'done');
    t.is(await tried({ type: 'makeDirectory', path: encode(deep), parents: true }), 'done');
    t.is(await shell(`cd ${directory} && stat -c %a:%u:%g a a/b/c`), '755:5:6\n2750:5:6\n');
    t.is(await write({ path: `${deep}/d/f`, parents: true, uid: 9 }, Buffer.from('x')), 'done');
    t.is(await shell(`stat -c %a:%u:%g ${deep}/d ${deep}/d/f`), '755:9:1001\n644:9:1001\n');
    await shell(`cd ${directory} && ln -s /mnt/other a/link && touch /mnt/other/stays`);
    t.is(
      await tried({ type: 'move', path: encode(`${directory}/a`), to: encode(`${directory}/z`) }),
      'done',
    );
    t.is(await tried({ type: 'remove', path: encode(`${directory}/z/`), recursive: true }), 'done');
    t.is(await shell(`ls -A ${directory}; ls /mnt/other`), 'stays\n');
  });

  test(name('listings are sorted, whole and of any size of page'), async (t) => {
    const directory = await newDirectory();
    await shell(
      `cd ${directory} && for d in a a-b b b/c b.d; do mkdir $d && touch $d/x $d/y; done && ` +
        'for n in $(seq 300); do touch "b/c/n$n"; done && ln -s b link',
    );
    const flat = ['a', 'a-b', 'b', 'b.d', 'link'];
    t.deepEqual(await list(directory), flat);
    t.deepEqual(await list(directory, { limit: 1 }), flat);
    const all = await list(directory, { recursive: true });
    const found = (await shell(`cd ${directory} && find . -mindepth 1`)).trim().split('\n');
    t.deepEqual(all.toSorted(), found.map((path) => path.slice(2)).toSorted());
    t.deepEqual(all.slice(0, 5), ['a', 'a/x', 'a/y', 'a-b', 'a-b/x']);
    for (const limit of [1, 7, 100]) {
      t.deepEqual(await list(directory, { recursive: true, limit }), all, `pages of ${limit}`);
    }
    t.is(
      await tried({ type: 'list', path: encode(`${directory}/a/x`), limit: 1 }),
      'not_a_directory',
    );
  });

  test(name('a watch tells of what happens, in new and moved directories too'), async (t) => {
    const directory = await newDirectory();
    await shell(`mkdir -p ${directory}/old/sub`);
    const { seen, following } = await watchAll(directory);
    await shell(
      `cd ${directory} && echo x > f && chmod 600 f && rm f && mkdir -p new/deep && ` +
        'echo x > new/deep/g && mv old moved && echo y > moved/sub/h',
    );
    const wanted = [
      ...['created f', 'modified f', 'attributes f', 'removed f', 'created new'],
      ...['created new/deep', 'created new/deep/g', 'removed old', 'created moved'],
      ...['created moved/sub', 'created moved/sub/h'],
    ];
    await waitFor('the events', async () => wanted.every((event) => seen.has(event))).catch(
      () => undefined,
    );
    t.deepEqual(
      wanted.filter((event) => !seen.has(event)),
      [],
    );
    await shell(`rm -r ${directory}`);
    await waitFor('the end', async () => seen.has('end '));
    await following;
  });

  test(name('a watch names no file that had no name, nor an upload on its way'), async (t) => {
    const directory = await newDirectory();
    const { seen, following } = await watchAll(directory);
    const nameless = [
      'import os',
      `file = os.open('${directory}', os.O_TMPFILE | os.O_RDWR)`,
      "os.write(file, b'x')",
      'os.fchmod(file, 0o600)',
      `open('${directory}/#5', 'w').write('named')`,
      `open('${directory}/.berth-0123456789abcdef', 'w').write('upload')`,
      `os.rename('${directory}/.berth-0123456789abcdef', '${directory}/placed')`,
    ];
    await shell(`python3 -c "${nameless.join('\n')}"`);
    await waitFor('the events', async () => seen.has('created placed'));
    t.deepEqual(
      [...seen].filter((event) => !/ (?:#5|placed|)$/u.test(event)),
      [],
    );
    t.true(seen.has('modified #5'));
    await shell(`rm -r ${directory}`);
    await following;
  });

  test(name('a watch misses nothing while thousands of files change'), async (t) => {
    const directory = await newDirectory();
    const { seen, kinds, worker, following } = await watchAll(directory);
    const inEach = isFull ? 100 : 20;
    await shell(
      `cd ${directory} && for d in $(seq 100); do mkdir d$d && for f in $(seq ${inEach}); do ` +
        'echo $f > d$d/f$f; done; done; touch end',
    );
    await waitFor('the end', async () => seen.has('created end') || kinds.includes('overflow'));
    // A watcher that is told so lists the directory anew.
    const listed = kinds.includes('overflow') ? await list(directory, { recursive: true }) : [];
    for (const path of listed) seen.add(`created ${path}`);
    const names = Array.from(
      { length: 100 * inEach },
      (_, n) => `d${(n % 100) + 1}/f${Math.floor(n / 100) + 1}`,
    );
    t.deepEqual(
      names.filter((path) => !seen.has(`created ${path}`)),
      [],
    );
    await worker.end();
    await following;
  });

  test(name('what the kernel drops is told, and what was made meanwhile is watched'), async (t) => {
    const directory = await newDirectory();
    const { seen, kinds, worker, following } = await watchAll(directory);
    const queued = Number(await readFile('/proc/sys/fs/inotify/max_queued_events', 'utf8'));
    // The watch is the one process with a queue of this directory's events; stopped, it reads none.
    const inode = Number(await shell(`stat -c %i ${directory}`)).toString(16);
    const look = `grep -l "^inotify.* ino:${inode} " /proc/[0-9]*/fdinfo/* 2>/dev/null`;
    const [, , watcher = ''] = (await shell(look)).split('/');
    await shell(
      `kill -STOP ${watcher} && cd ${directory} && seq ${queued + 1} | xargs touch && ` +
        `mkdir -p late/deep && kill -CONT ${watcher}`,
    );
    await waitFor('the word of it', async () => kinds.includes('overflow'));
    await shell(`echo x > ${directory}/late/deep/file`);
    await waitFor('what follows', async () => seen.has('created late/deep/file'));
    t.false(kinds.includes('end'));
    await worker.end();
    await following;
  });

  test(name('operations end with their host'), async (t) => {
    await using guest = await startConfigured({ build });
    const own = new SandboxFiles();
    own.connect(new OpenLink(guest.channel));
    await using worker = await own.begin({ type: 'watch', path: encode('/tmp') });
    await readResult(worker);
    const ended = (async () => {
      for (;;) await readEvent(worker);
    })();
    guest.channel.close();
    t.is(codeOf(await t.throwsAsync(ended)), 'unavailable');
    await sleep(0);
  });
}
