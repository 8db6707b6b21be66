/** Client for Berth: shared disks, serverless execution and persistent sandboxes. */
export * from './exports/account.ts';
export * from './exports/client.ts';
export * from './exports/disks.ts';
export * from './exports/errors.ts';
export * from './exports/files.ts';
export * from './exports/processes.ts';
export * from './exports/sandboxes.ts';
export type * from './exports/types.ts';
