/*
 * An image other than the default one, in both of its forms: a shell, a few programs, and a user.
 */
import { execFile } from 'node:child_process';
import { mkdir, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { gzipSync } from 'node:zlib';
import type { MachineImage } from '../../agent/machines/driver.ts';
import { run } from '../../agent/system/spawn.ts';
import { GiB } from '../../shared/units.ts';
import type { TestLayer } from './registry.ts';

const execute = promisify(execFile);

const PROGRAMS = ['cat', 'grep', 'head', 'id', 'mkdir', 'mount', 'sleep', 'stat', 'sync'];
/** The size of every root disk. */
const DISK_BYTES = 32 * GiB;

/** Copies this host's programs with the libraries that they name. */
const COPY = `
  mkdir -p bin dev etc proc run sys tmp
  cp "$(command -v dash)" bin/sh
  for program in $PROGRAMS; do cp "$(command -v $program)" bin/; done
  for program in bin/*; do
    for library in $(ldd $program | grep -o '/[^ ]*'); do
      mkdir -p .$(dirname $library) && cp -Lu $library .$library
    done
  done
  printf 'root:x:0:0::/root:/bin/sh\\nnode:x:1000:1000::/home/node:/bin/sh\\n' > etc/passwd
  printf 'root:x:0:\\nnode:x:1000:\\n' > etc/group
  mkdir -p root home/node && chown 1000:1000 home/node
  chmod 1777 tmp`;

/**
 * Makes a directory with the contents of one, and the file `/marker`.
 * @param more programs of this host that it has, too
 */
async function makeTinyTree(
  tree: string,
  marker: string,
  more: readonly string[] = [],
): Promise<void> {
  await mkdir(tree, { recursive: true });
  await run('sh', [
    '-e',
    '-c',
    `cd "$0"; PROGRAMS="$1"; ${COPY}`,
    tree,
    [...PROGRAMS, ...more].join(' '),
  ]);
  await writeFile(join(tree, 'marker'), marker);
}

/** The only layer of an image with such a root. @param tree a missing directory for it */
export async function tinyLayer(
  tree: string,
  marker: string,
  more: readonly string[] = [],
): Promise<TestLayer> {
  await makeTinyTree(tree, marker, more);
  const { stdout: archive } = await execute('tar', ['-C', tree, '--numeric-owner', '-c', '.'], {
    encoding: 'buffer',
    maxBuffer: GiB,
  });
  return { archive, blob: gzipSync(archive, { level: 1 }) };
}

/**
 * Makes one with the file `/marker`.
 * @param parent an empty or missing directory for it
 */
export async function makeTinyImage(parent: string, marker: string): Promise<MachineImage> {
  const tree = join(parent, 'rootfs');
  const rootDisk = join(parent, 'root.ext4');
  await makeTinyTree(tree, marker);
  await writeFile(rootDisk, '');
  await truncate(rootDisk, DISK_BYTES);
  const extended = 'assume_storage_prezeroed=1,lazy_itable_init=1,lazy_journal_init=1';
  await run('mke2fs', ['-q', '-t', 'ext4', '-F', '-d', tree, '-E', extended, rootDisk]);
  return { rootDisk, tree };
}
