import { rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { reportBackgroundFailures } from '../../../shared/background.ts';
import { parseJson } from '../../../shared/json.ts';
import { native } from '../../native/native.ts';
import { createControlServer, toParts } from './control-server.ts';
import { EgressServer } from './egress-server.ts';
import type { ProxyArguments } from './egress-settings.ts';
import { refuseNames } from './name-refuser.ts';

/*
 * The egress proxy of one host, a process of its own in the network namespace of the host's router.
 * An agent starts it as root (start-proxy.ts) and may end before it; it gives up every privilege
 * before it accepts anything.
 */

/** How long it stays without an agent when it serves no slot. */
const UNUSED_MS = 60_000;
const NOTHING = { closed: ['0.0.0.0/0'], private: [], opened: [], trustedCertificates: '' };

const { control, port, names, uid } = parseJson(process.argv[2] ?? '') as ProxyArguments;
// Failures here are a guest's or a server's fault, and messages could quote either.
reportBackgroundFailures(() => undefined);
process.on('unhandledRejection', () => undefined);
// An uncaught exception may have stopped any code half-way: Node writes it to stderr and ends the
// process, and the agent starts it again.

const server = new EgressServer(toParts({ ...NOTHING, resolver: '127.0.0.1' }));
let unused: NodeJS.Timeout | undefined;
const endWhenUnused = (watchers: number): void => {
  clearTimeout(unused);
  if (watchers > 0) return;
  unused = setTimeout(() => {
    if (server.slots.length === 0) process.exit(0);
    else endWhenUnused(0);
  }, UNUSED_MS);
};

const listener = native.listenTransparent(port);
await refuseNames(server, names);
rmSync(control, { force: true });
process.umask(0o177);
const controlServer = createControlServer(server, endWhenUnused);
controlServer.listen(control, () => {
  process.setgroups?.([]);
  process.setgid?.(uid);
  process.setuid?.(uid);
  native.forbidDumps();
  const connections = createServer({ allowHalfOpen: true, noDelay: true, keepAlive: true });
  connections.on('connection', (socket) => server.accept(socket));
  connections.listen({ fd: listener });
  endWhenUnused(0);
});
