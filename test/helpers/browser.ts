import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { run } from '../../agent/system/spawn.ts';
import { settledWithin } from '../../shared/settled-within.ts';

const KILL_AFTER_MS = 5_000;
const noNetlink = new URL('../fixtures/no-netlink.c', import.meta.url).pathname;

/**
 * Builds what keeps a browser from hearing of network interfaces; see test/fixtures/no-netlink.c.
 */
async function buildNoNetlink(directory: string): Promise<string> {
  const library = join(directory, 'no-netlink.so');
  const flags = ['-std=c11', '-O2', '-Wall', '-Wextra', '-Werror', '-fPIC', '-shared'];
  await run('cc', [...flags, '-o', library, noNetlink], { timeoutMs: 60_000 });
  return library;
}

/**
 * Opens a page in a headless browser with a profile of its own below `directory`. The page tells
 * its findings by itself, to a server of the test.
 * @param more further options of the browser
 */
export async function openPage(
  url: string,
  directory: string,
  more: readonly string[] = [],
): Promise<AsyncDisposable> {
  const args = [
    '--headless=new',
    '--no-sandbox', // Chromium's sandbox does not work as root.
    '--disable-gpu',
    '--disable-dev-shm-usage',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--mute-audio',
    '--autoplay-policy=no-user-gesture-required',
    `--user-data-dir=${join(directory, 'browser')}`,
    `--disk-cache-dir=${join(directory, 'browser-cache')}`,
    ...more,
    url,
  ];
  const child = spawn('chromium', args, {
    stdio: 'ignore',
    detached: true, // In its own process group, so that its helpers end with it.
    env: {
      PATH: process.env['PATH'] ?? '',
      HOME: directory,
      LD_PRELOAD: await buildNoNetlink(directory),
    },
  });
  const exited = once(child, 'exit');
  return {
    async [Symbol.asyncDispose]() {
      if (child.pid === undefined) throw new Error('chromium was not started');
      process.kill(-child.pid, 'SIGTERM');
      if (!(await settledWithin(exited, KILL_AFTER_MS))) process.kill(-child.pid, 'SIGKILL');
      await exited;
    },
  };
}
