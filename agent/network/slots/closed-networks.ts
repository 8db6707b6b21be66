import { NETWORKS } from './addresses.ts';

/** No guest reaches these, whatever the settings say. */
export const CLOSED_NETWORKS = [
  '0.0.0.0/8',
  '127.0.0.0/8',
  '169.254.0.0/16', // Link-local, and where most clouds have the metadata of a machine.
  '192.0.0.0/24', // Metadata of Oracle's cloud among them.
  '168.63.129.16/32', // Metadata of Azure.
  NETWORKS.all,
  '224.0.0.0/4', // Multicast.
  '240.0.0.0/4', // Reserved, and broadcast.
] as const;

/** No guest reaches these but for what SANDBOX_REACHABLE_NETWORKS opens. */
export const PRIVATE_NETWORKS = [
  '10.0.0.0/8',
  '172.16.0.0/12',
  '192.168.0.0/16',
  '100.64.0.0/10',
] as const;
