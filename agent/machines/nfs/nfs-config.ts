import { MACHINE_LIMITS } from '../limits.ts';
import { NETWORK_LIMITS } from '../../network/limits.ts';
import type { MachineMount } from '../attachments.ts';

const block = (
  name: string,
  values: Readonly<Record<string, string | number>>,
  within = '',
): string => {
  const lines = Object.entries(values).map(([key, value]) => `  ${key} = ${value};\n`);
  return `${name} {\n${lines.join('')}${within}}\n`;
};

/** The exports' numbers are part of file handles: the same mounts have the same after a pause. */
const exportOf = ({ diskId, readOnly }: MachineMount, index: number): string =>
  block(
    'EXPORT',
    {
      Export_Id: index + 1,
      Path: `/disks/${diskId}`,
      Pseudo: `/${diskId}`,
      Access_Type: readOnly ? 'RO' : 'RW',
    },
    '  FSAL { Name = VFS; }\n',
  );

/**
 * The configuration of nfs-ganesha for one sandbox (decision 0047). Pure.
 * - The kernel's locks decide, which commands and other sandboxes take too. A server has no memory
 *   of its clients: after a restart or a pause a lock is lost, never granted again unseen
 *   (`Graceless`).
 * - Others change the disks as well, so nothing of them is cached here (`Dir_Chunk`,
 *   `Attr_Expiration_Time`).
 */
export function nfsConfig(
  mounts: readonly MachineMount[],
  { address, pluginsDir }: { readonly address: string; readonly pluginsDir: string },
): string {
  return [
    block('NFS_CORE_PARAM', {
      Protocols: 4,
      NFS_Port: NETWORK_LIMITS.nfsPort,
      Bind_Addr: address,
      Enable_NLM: 'false',
      Enable_RQUOTA: 'false',
      Enable_UDP: 'false',
      mount_path_pseudo: 'true',
      Plugins_Dir: `"${pluginsDir}"`,
    }),
    block('NFSV4', {
      Graceless: 'true',
      Lease_Lifetime: MACHINE_LIMITS.nfsLeaseSeconds,
      Minor_Versions: '1, 2',
      Delegations: 'false',
      Only_Numeric_Owners: 'true',
      // The server sees no table of users, and needs none: owners are numbers.
      UseGetpwnam: 'true',
      DomainName: 'berth',
      RecoveryBackend: 'fs',
      RecoveryRoot: '/run',
    }),
    block('MDCACHE', { Dir_Chunk: 0 }),
    block('EXPORT_DEFAULTS', {
      SecType: 'sys',
      Squash: 'No_root_squash',
      Transports: 'TCP',
      Protocols: 4,
      Attr_Expiration_Time: 0,
    }),
    ...mounts.map(exportOf),
    block('LOG', { Default_Log_Level: 'WARN' }),
  ].join('');
}
