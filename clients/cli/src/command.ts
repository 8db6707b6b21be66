import { Command } from '@commander-js/extra-typings';

/** A command with the options that all have. */
export const leaf = (name: string) =>
  new Command(name)
    .option('--json', 'print JSON for programs')
    .option('-q, --quiet', 'print names and ids only, and no progress')
    .option('--profile <name>', 'use this profile instead of the current one');

/** A command that only has others. */
export const group = (name: string, summary: string): Command =>
  new Command(name)
    .enablePositionalOptions()
    .summary(summary)
    .description(`${summary[0]?.toUpperCase()}${summary.slice(1)}.`);
