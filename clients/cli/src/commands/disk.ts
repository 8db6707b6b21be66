import type { Command } from '@commander-js/extra-typings';
import { group } from '../command.ts';
import { execCommand, grepCommand } from './disk-commands.ts';
import { catCommand, cpCommand, editCommand, shareCommand, syncCommand } from './disk-files.ts';
import { createCommand, getCommand, lsCommand, rmCommand } from './disk-records.ts';

/** `berth disk …` */
export function diskCommand(): Command {
  const commands = [
    createCommand(),
    lsCommand(),
    getCommand(),
    execCommand(),
    grepCommand(),
    cpCommand(),
    syncCommand(),
    catCommand(),
    editCommand(),
    shareCommand(),
    rmCommand(),
  ];
  const disk = group('disk', 'shared disks, and commands on them');
  for (const command of commands) disk.addCommand(command);
  return disk;
}
