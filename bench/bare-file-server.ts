/*
 * The baseline of the benchmark of objects: gives a file of a directory, or takes one with its MD5
 * and writes it durably; nothing else.
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
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
  const refuse = (): void => void response.writeHead(404).end();
  if (request.method === 'PUT') {
    store(request).then((etag) => response.setHeader('etag', etag).end(), refuse);
    return;
  }
  createReadStream(join(directory, request.url ?? ''))
    .on('error', refuse)
    .pipe(response);
}).listen(Number(port), '127.0.0.1');
