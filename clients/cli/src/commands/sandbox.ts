import type { Command } from '@commander-js/extra-typings';
import { group } from '../command.ts';
import { cpCommand } from './sandbox-cp.ts';
import { createCommand } from './sandbox-create.ts';
import {
  actionCommands,
  forkCommand,
  rmCommand,
  snapshotCommand,
  waitCommand,
} from './sandbox-lifecycle.ts';
import { logsCommand } from './sandbox-logs.ts';
import { portsCommand } from './sandbox-ports.ts';
import { runCommand, shellCommand } from './sandbox-processes.ts';
import { getCommand, lsCommand } from './sandbox-records.ts';
import { sshConfigCommand, sshProxyCommand } from './sandbox-ssh.ts';

/** `berth sandbox …` */
export function sandboxCommand(): Command {
  const commands = [
    createCommand(),
    lsCommand(),
    getCommand(),
    runCommand(),
    shellCommand(),
    cpCommand(),
    logsCommand(),
    ...actionCommands(),
    forkCommand(),
    snapshotCommand(),
    portsCommand(),
    sshConfigCommand(),
    sshProxyCommand(),
    waitCommand(),
    rmCommand(),
  ];
  const sandbox = group('sandbox', 'persistent machines');
  for (const command of commands) sandbox.addCommand(command);
  return sandbox;
}
