import { once } from 'node:events';
import { createServer, type Server } from 'node:net';

// Below the range from which the kernel takes the ports of outgoing connections: such a one could
// take a port between our look and the server's start.
const PORT_MIN = 10_000;
const PORT_COUNT = 20_000;

/** Keep other test processes from ports until this one ends, also while nothing listens there. */
const reservations: Server[] = [];

/** @returns false when another test process has the port */
async function reserve(port: number): Promise<boolean> {
  const server = createServer().unref();
  try {
    server.listen(`\0berth-test-port-${port}`); // Without a file, so the kernel clears it away.
    await once(server, 'listening');
  } catch {
    return false;
  }
  reservations.push(server);
  return true;
}

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

/** Distinct ports that were free a moment ago, and that no other test process is given. */
export async function freePorts(count: number): Promise<number[]> {
  const ports = new Set<number>();
  while (ports.size < count) {
    const port = PORT_MIN + Math.floor(Math.random() * PORT_COUNT);
    if ((await reserve(port)) && (await isFree(port))) ports.add(port);
  }
  return [...ports];
}
