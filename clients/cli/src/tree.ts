import { Command, type CommandUnknownOpts } from '@commander-js/extra-typings';
import { type CommandEntry, COMMANDS } from './commands/index.ts';
import { VERSION } from './version.ts';

/**
 * A command's summary as help lists it: in lower case, but for an abbreviation, without a full
 * stop.
 */
export function inList(command: CommandUnknownOpts): string {
  const text = (command.summary() || command.description()).replace(/\.$/u, '');
  return text.replace(/^\p{Lu}(?!\p{Lu})/u, (first) => first.toLowerCase());
}

/**
 * Applies the settings that all commands share: usage errors are thrown, and printed in one place.
 */
function configure(command: CommandUnknownOpts): void {
  command
    .exitOverride()
    .enablePositionalOptions()
    .configureHelp({ subcommandDescription: inList })
    .configureOutput({ outputError: () => undefined })
    .helpOption('-h, --help', 'show this help');
  if (command.commands.length > 0) command.helpCommand(false);
  for (const each of command.commands) configure(each);
}

/** A command that is only listed. */
const listed = ({ name, summary }: CommandEntry): Command => new Command(name).summary(summary);

/**
 * The tree of commands.
 * @param wanted the one to load; all of them for completions
 */
export async function commandTree(wanted: string): Promise<CommandUnknownOpts> {
  const program = new Command('berth')
    .description('Shared disks, commands on them, and persistent sandboxes.')
    .version(VERSION, '-V, --version', 'show the version')
    .usage('<command> [options]')
    .addHelpText(
      'after',
      '\nOptions stand after the command. berth <command> --help says more. Start with berth login, or in a checkout with ./scripts/up.',
    );
  for (const entry of COMMANDS) {
    program.addCommand(entry.name === wanted ? await entry.load() : listed(entry));
  }
  configure(program);
  return program;
}
