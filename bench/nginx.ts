import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Daemon } from '../test/helpers/daemon.ts';
import { freePorts } from '../test/helpers/ports.ts';
import { waitFor } from '../test/helpers/wait.ts';

export interface FileServer extends AsyncDisposable {
  readonly url: string;
}

/** Waits until the server answers. Disposing the result stops it. */
export async function serving(server: Daemon, url: string): Promise<FileServer> {
  server.start();
  await waitFor(server.name, async () => {
    if (!server.isRunning) throw new Error(`${server.name} ended: ${await server.readLog()}`);
    return (await fetch(url).catch(() => undefined)) !== undefined;
  });
  return {
    url,
    [Symbol.asyncDispose]: async () => {
      await server.stop();
    },
  };
}

/** Debian's nginx with one worker and sendfile, serving a directory. */
export async function startNginx(root: string, directory: string): Promise<FileServer> {
  const [port = 0] = await freePorts(1);
  await mkdir(directory);
  const scratch = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
    (name) => `${name}_temp_path ${join(directory, name)};`,
  );
  const config = [
    'user root;',
    'daemon off;',
    'worker_processes 1;',
    `pid ${join(directory, 'pid')};`,
    'error_log stderr;',
    'events { worker_connections 128; }',
    'http {',
    ...['access_log off;', 'sendfile on;', 'tcp_nopush on;', ...scratch],
    `server { listen 127.0.0.1:${port}; root ${root}; }`,
    '}',
  ];
  const path = join(directory, 'nginx.conf');
  await writeFile(path, `${config.join('\n')}\n`);
  const log = join(directory, 'log');
  const nginx = new Daemon('nginx', ['/usr/sbin/nginx', '-c', path, '-e', 'stderr'], {}, log);
  return serving(nginx, `http://127.0.0.1:${port}`);
}
