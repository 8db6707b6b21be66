import { execFileSync } from 'node:child_process';
import { mkdirSync, rmSync } from 'node:fs';

/** A file system of the test's own with a hard size. */
export function mountSmall(path: string, sizeMiB: number): { unmount: () => void } {
  mkdirSync(path, { recursive: true });
  execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${sizeMiB}m`, 'tmpfs', path]);
  return {
    unmount() {
      execFileSync('umount', [path]);
      rmSync(path, { recursive: true });
    },
  };
}
