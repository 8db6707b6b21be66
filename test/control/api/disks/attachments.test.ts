import test from 'ava';
import { AppError } from '../../../../shared/errors.ts';
import { sandboxMounts } from '../../../../control/api/disks/attachments.ts';

const A = 'dsk-00000000000000aa';
const B = 'dsk-00000000000000bb';
const plain = { subdirectory: '', readOnly: false };

test('a sole mount without a path is at /mnt/service', (t) => {
  t.deepEqual(sandboxMounts([{ disk_id: A }]), [{ diskId: A, path: '/mnt/service', ...plain }]);
});

test('every option is taken over', (t) => {
  const mounts = sandboxMounts([
    { disk_id: A, path: '/data', subdirectory: 'a/b', read_only: true },
    { disk_id: B, path: '/root/work' },
  ]);
  t.deepEqual(mounts, [
    { diskId: A, path: '/data', subdirectory: 'a/b', readOnly: true },
    { diskId: B, path: '/root/work', ...plain },
  ]);
});

const refuses = test.macro({
  exec(t, paths: readonly (string | undefined)[], message: RegExp) {
    const disks = paths.map((path, index) => ({
      disk_id: `dsk-000000000000000${index}`,
      ...(path === undefined ? {} : { path }),
    }));
    const error = t.throws(() => sandboxMounts(disks), { instanceOf: AppError });
    t.is(error.code, 'bad_request');
    t.regex(error.message, message);
  },
  title: (_, paths) => `refused: ${JSON.stringify(paths)}`,
});

test(refuses, ['/'], /mounts\[0\].* root of the sandbox/u);
test(refuses, ['data'], /not absolute/u);
test(refuses, ['/data/'], /empty segment/u);
test(refuses, ['/a//b'], /empty segment/u);
test(refuses, ['/a/../etc'], /".." segment/u);
test(refuses, ['/a\0b'], /NUL/u);
test(refuses, ['/proc'], /lies in \/proc/u);
test(refuses, ['/dev/shm/x'], /lies in \/dev/u);
test(refuses, ['/run/berth'], /lies in \/run/u);
test(refuses, ['/usr'], /cover the system directory \/usr/u);
test(refuses, ['/etc'], /cover the system directory \/etc/u);
test(refuses, ['/var'], /cover the system directory \/var/u);
test(refuses, ['/ok', '/lib64'], /mounts\[1\].* cover/u);
test(refuses, ['/a', undefined], /mounts\[1\]: path is required/u);
test(refuses, ['/a', '/a'], /mounts\[1\]: \/a overlaps \/a/u);
test(refuses, ['/a', '/a/b'], /mounts\[1\]: \/a\/b overlaps \/a/u);
test(refuses, ['/a/b', '/a'], /mounts\[1\]: \/a overlaps \/a\/b/u);

test('a path may lie below a system directory, and share the beginning of a name', (t) => {
  const paths = ['/usr/local/data', '/var/www', '/devices', '/a', '/ab'];
  const mounts = sandboxMounts(
    paths.map((path, index) => ({ disk_id: `dsk-000000000000000${index}`, path })),
  );
  t.deepEqual(
    mounts.map(({ path }) => path),
    paths,
  );
});

test('refused: a disk twice, and a subdirectory that leads out', (t) => {
  const twice = [
    { disk_id: A, path: '/a' },
    { disk_id: A, path: '/b' },
  ];
  t.throws(() => sandboxMounts(twice), {
    message: new RegExp(`mounts\\[1\\]: disk ${A} .*twice`, 'u'),
  });
  const out = [{ disk_id: A, subdirectory: '../x' }];
  t.throws(() => sandboxMounts(out), { message: /mounts\[0\]: subdirectory .*".." segment/u });
});

test('refused: checkouts, which a sandbox does not have; other writers are no matter', (t) => {
  for (const checkout of [{ queue_ms: 5000 }, { checkout_paths: ['a'] }, { checkout_paths: [] }]) {
    const mounts = [{ disk_id: A, ...checkout }];
    t.throws(() => sandboxMounts(mounts), { code: 'bad_request', message: /sandboxes check/u });
  }
  const [mount] = sandboxMounts([{ disk_id: A, conditional: true }]);
  t.deepEqual(mount, { diskId: A, path: '/mnt/service', ...plain });
});
