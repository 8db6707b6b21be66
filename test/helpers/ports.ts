import { once } from 'node:events';
import { createServer } from 'node:net';

// Below the range from which the kernel takes the ports of outgoing connections: such a one could
// take a port between our look and the server's start.
const PORT_MIN = 10_000;
const PORT_COUNT = 20_000;

async function isFree(port: number): Promise<boolean> {
  const server = createServer();
  try {
    server.listen(port, '127.0.0.1');
    await once(server, 'listening');
    return true;
  } catch {
    return false;
  } finally {
    server.close();
  }
}

/** Distinct ports that were free a moment ago. */
export async function freePorts(count: number): Promise<number[]> {
  const ports = new Set<number>();
  while (ports.size < count) {
    const port = PORT_MIN + Math.floor(Math.random() * PORT_COUNT);
    if (await isFree(port)) ports.add(port);
  }
  return [...ports];
}
