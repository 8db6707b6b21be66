/* The baseline of the benchmark of small objects: a file from a directory, and nothing else. */
import { createReadStream } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';

const [directory = '', port] = process.argv.slice(2);

createServer((request, response) => {
  createReadStream(join(directory, request.url ?? ''))
    .on('error', () => response.writeHead(404).end())
    .pipe(response);
}).listen(Number(port), '127.0.0.1');
