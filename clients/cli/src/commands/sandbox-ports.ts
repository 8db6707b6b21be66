import type { SandboxPort } from '@berth/sdk';
import { leaf } from '../command.ts';
import { opened } from '../context.ts';
import { findSandbox } from '../find.ts';
import type { Shown } from '../output.ts';
import { eachCount } from '../values.ts';

const PORTS: Shown<SandboxPort> = {
  id: ({ hostname }) => hostname,
  columns: [
    { head: 'PORT', of: ({ port }) => String(port) },
    { head: 'HOSTNAME', of: ({ hostname }) => hostname },
  ],
};

export const portsCommand = () =>
  leaf('ports')
    .description('List the public ports of a sandbox, and make ports public or private.')
    .argument('<sandbox>', 'its name or id')
    .option('--expose <n>', 'make a port public; more than once', eachCount)
    .option('--unexpose <n>', 'make a port private again; more than once', eachCount)
    .action(async (name, { expose = [], unexpose = [], ...options }) => {
      const { output, berth } = await opened(options);
      const sandbox = await findSandbox(berth, name);
      for (const port of expose) await sandbox.network.expose(port);
      for (const port of unexpose) await sandbox.network.unexpose(port);
      const published = sandbox.info.endpoints.filter(({ port }) => !unexpose.includes(port));
      const exposed = await sandbox.network.ports();
      const ports = new Map([...published, ...exposed].map((each) => [each.port, each]));
      output.list(
        [...ports.values()].sort((a, b) => a.port - b.port),
        PORTS,
      );
    });
