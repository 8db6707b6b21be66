import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import autocannon from 'autocannon';
import { Daemon } from '../test/helpers/daemon.ts';
import { freePorts } from '../test/helpers/ports.ts';
import { waitFor } from '../test/helpers/wait.ts';

/** A server of a benchmark. Disposing of it stops it. */
export interface Served extends AsyncDisposable {
  readonly url: string;
  readonly pid: number;
}

/** Starts a server, and waits until it answers. */
export async function serving(server: Daemon, url: string): Promise<Served> {
  server.start();
  await waitFor(server.name, async () => {
    if (!server.isRunning) throw new Error(`${server.name} ended: ${await server.readLog()}`);
    const { status = 500 } = (await fetch(url).catch(() => undefined)) ?? {};
    return status < 500;
  });
  const { pid } = server;
  return { url, pid, [Symbol.asyncDispose]: async () => void (await server.stop()) };
}

/**
 * Writes the settings of Debian's nginx.
 * @param home for its files; made here
 * @param http what it serves, and how
 * @returns the arguments that it is started with
 */
export async function configureNginx(
  home: string,
  workers: number | 'auto',
  http: readonly string[],
): Promise<string[]> {
  await mkdir(home);
  const scratch = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
    (name) => `${name}_temp_path ${join(home, name)};`,
  );
  const config = [
    ...['user root;', 'daemon off;', `worker_processes ${workers};`, `pid ${join(home, 'pid')};`],
    ...['error_log stderr;', 'events { worker_connections 1024; }', 'http {', 'access_log off;'],
    ...['keepalive_requests 100000000;', ...scratch, ...http, '}'],
  ];
  const path = join(home, 'nginx.conf');
  await writeFile(path, `${config.join('\n')}\n`);
  return ['-c', path, '-e', 'stderr'];
}

/** Serves a directory by nginx with sendfile and one worker. */
export async function startNginx(root: string, directory: string): Promise<Served> {
  const [port = 0] = await freePorts(1);
  const server = `server { listen 127.0.0.1:${port}; root ${root}; }`;
  const args = await configureNginx(directory, 1, ['sendfile on;', 'tcp_nopush on;', server]);
  const log = join(directory, 'log');
  const nginx = new Daemon('nginx', ['/usr/sbin/nginx', ...args], {}, log);
  return serving(nginx, `http://127.0.0.1:${port}`);
}

/** GETs by so many connections for so long. @throws Error when one failed */
export async function underLoad(options: autocannon.Options): Promise<autocannon.Result> {
  const result = await autocannon(options);
  const failed = result.non2xx + result.errors;
  if (failed > 0) throw new Error(`${options.url}: ${failed} requests failed`);
  return result;
}
