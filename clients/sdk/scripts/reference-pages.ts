/* Which page of the reference (docs/sdk/) has what the sources export. */

export interface ReferencePage {
  readonly name: string;
  readonly title: string;
  readonly about: string;
  /** Below src/, in the order in which the page has them. */
  readonly sources: readonly string[];
}

export const REFERENCE_PAGES: readonly ReferencePage[] = [
  {
    name: 'client',
    title: 'Client: Berth, calls and lists',
    about: 'Where it all begins, what every call takes, and lists.',
    sources: [
      'berth.ts',
      'http.ts',
      'transport.ts',
      'waiting.ts',
      'pages.ts',
      'api-keys.ts',
      'image.ts',
    ],
  },
  {
    name: 'account',
    title: 'Client: the account',
    about: 'What the account did and used, and where its events are sent.',
    sources: ['account.ts', 'hosts.ts', 'webhooks.ts'],
  },
  {
    name: 'disks',
    title: 'Client: disks',
    about: 'Disks, commands on them, and their files.',
    sources: ['disk.ts', 'files/disk-files.ts'],
  },
  {
    name: 'sandboxes',
    title: 'Client: sandboxes',
    about: 'Sandboxes, their recorded commands, network and snapshots.',
    sources: ['sandbox.ts', 'sandbox-execs.ts', 'sandbox-network.ts', 'snapshot.ts'],
  },
  {
    name: 'processes',
    title: 'Client: processes',
    about: 'Processes in sandboxes and the sessions with them.',
    sources: ['process.ts', 'session/session.ts', 'session/frames.ts'],
  },
  {
    name: 'files',
    title: 'Client: files of sandboxes',
    about: 'Reading, writing, arranging and watching files of a running sandbox.',
    sources: [
      'files/sandbox-files.ts',
      'files/content.ts',
      'files/download.ts',
      'files/watch.ts',
      'files/paths.ts',
    ],
  },
  {
    name: 'errors',
    title: 'Client: errors',
    about: 'What the client throws.',
    sources: ['errors.ts'],
  },
  {
    name: 'types',
    title: 'Client: bodies and answers',
    about: 'What calls take and give, under the names of the API reference, which has every field.',
    sources: ['types.ts'],
  },
];
