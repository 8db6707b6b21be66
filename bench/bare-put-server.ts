/*
 * A floor for the benchmark of large puts: takes a body and its MD5, writes it durably to a
 * directory, and does nothing else.
 */
import { createHash } from 'node:crypto';
import { open } from 'node:fs/promises';
import { createServer, type IncomingMessage } from 'node:http';
import { join } from 'node:path';

const [directory = '', port] = process.argv.slice(2);

async function store(request: IncomingMessage): Promise<string> {
  await using file = await open(join(directory, request.url ?? ''), 'w');
  const md5 = createHash('md5');
  let writing: Promise<unknown> = Promise.resolve();
  for await (const chunk of request as AsyncIterable<Buffer>) {
    await writing;
    writing = file.writeFile(chunk);
    md5.update(chunk);
  }
  await writing;
  await file.sync();
  return md5.digest('hex');
}

createServer((request, response) => {
  store(request).then(
    (etag) => response.setHeader('etag', etag).end(),
    () => response.writeHead(404).end(),
  );
}).listen(Number(port), '127.0.0.1');
