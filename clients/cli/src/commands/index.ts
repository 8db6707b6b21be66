import type { CommandUnknownOpts } from '@commander-js/extra-typings';

/**
 * A command, or a group of them. Its module is loaded when it is used: start-up is most of a short
 * run.
 */
export interface CommandEntry {
  readonly name: string;
  readonly summary: string;
  /** The command only groups others. */
  readonly isGroup?: true;
  readonly load: () => Promise<CommandUnknownOpts>;
}

/** The commands that `berth --help` lists, in this order. */
export const COMMANDS: readonly CommandEntry[] = [
  {
    name: 'login',
    summary: 'keep the URL and API key of a server',
    load: async () => (await import('./login.ts')).loginCommand(),
  },
  {
    name: 'profile',
    isGroup: true,
    summary: 'servers that berth login has kept',
    load: async () => (await import('./profile.ts')).profileCommand(),
  },
  {
    name: 'disk',
    isGroup: true,
    summary: 'shared disks, and commands on them',
    load: async () => (await import('./disk.ts')).diskCommand(),
  },
  {
    name: 'sandbox',
    isGroup: true,
    summary: 'persistent machines: create, run, shell, pause, fork',
    load: async () => (await import('./sandbox.ts')).sandboxCommand(),
  },
  {
    name: 'snapshot',
    isGroup: true,
    summary: 'what sandboxes were, kept to create others from',
    load: async () => (await import('./snapshot.ts')).snapshotGroup(),
  },
  {
    name: 'image',
    isGroup: true,
    summary: 'images of registries, built for sandboxes',
    load: async () => (await import('./image.ts')).imageCommand(),
  },
  {
    name: 'key',
    isGroup: true,
    summary: 'API keys of the account',
    load: async () => (await import('./key.ts')).keyCommand(),
  },
  {
    name: 'host',
    isGroup: true,
    summary: 'machines, for operators: cordon, drain, fence, remove',
    load: async () => (await import('./host.ts')).hostCommand(),
  },
  {
    name: 'mcp',
    summary: 'tools for a language model, on standard input and output',
    load: async () => (await import('./mcp.ts')).mcpCommand(),
  },
  {
    name: 'doctor',
    summary: 'what works here and what does not',
    load: async () => (await import('./doctor.ts')).doctorCommand(),
  },
  {
    name: 'completion',
    summary: "print a shell's completion script",
    load: async () => (await import('./completion.ts')).completionCommand(),
  },
];
