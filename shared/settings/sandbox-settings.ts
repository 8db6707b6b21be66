import { isIPv4 } from 'node:net';
import Type from 'typebox';
import { LIMITS } from '../limits.ts';
import { sandboxRuntimes } from '../links/stream-protocol.ts';
import { GiB, MiB, TiB } from '../units.ts';
import { absolutePath, integer, list } from './kinds.ts';

const HOST_MAX = 2 ** 31;

const runtimeSettings = {
  SANDBOX_RUNTIME: Type.Enum([...sandboxRuntimes], {
    default: 'microvm',
    description:
      '`container`: sandboxes are containers of runc, at native speed and behind a weaker boundary ([sandboxes.md](sandboxes.md#containers-instead-of-virtual-machines)); needs neither `GUEST_DIR` nor `DEFAULT_ROOT_DISK`, and a kernel with idmapped mounts (5.19). Cannot be changed while the host has sandboxes',
  }),
  GUEST_DIR: Type.Optional(
    absolutePath({
      fallback: 'none',
      setUp: 'made by set-up',
      description:
        'kernel and initramfs of sandboxes. Without it and `DEFAULT_ROOT_DISK` the host runs none',
    }),
  ),
  DEFAULT_ROOT_DISK: Type.Optional(
    absolutePath({
      fallback: 'none',
      setUp: 'made by set-up',
      description:
        'the default image as a disk; read-only to sandboxes. `image.json` beside it says what the image is',
    }),
  ),
  SANDBOX_ACCELERATOR: Type.Enum(['auto', 'kvm', 'tcg'], {
    default: 'auto',
    description:
      '`kvm`, `tcg` (emulation), or `auto`: the agent tries whether KVM works ([sandboxes.md](sandboxes.md#on-the-host))',
  }),
  SANDBOX_TEMPLATES: Type.Enum(['on', 'off'], {
    default: 'on',
    description: '`off`: every machine boots from its kernel instead of starting from a template',
  }),
  SANDBOX_DIR: Type.Optional(
    absolutePath({
      fallback: 'the data directory',
      description:
        'a directory on storage that several hosts mount at any path: disks and checkpoints of sandboxes, between those hosts they move ([operations.md](operations.md#moving-sandboxes)). Virtual machines only; must exist, and cannot be changed while the host has sandboxes',
    }),
  ),
  SANDBOX_HOST_LOST_MS: integer({
    unit: 'ms',
    default: 60_000,
    minimum: 0,
    maximum: 3_600_000,
    description:
      'with `SANDBOX_DIR`: after how long a silence of another host its sandboxes are taken over, if the storage shows that nothing of it is alive. 0: only when an operator has said that it is off (`berth host fence`)',
  }),
  SANDBOX_DISK_BYTES: integer({
    unit: 'bytes',
    default: 32 * GiB,
    minimum: 64 * MiB,
    maximum: 16 * TiB,
    description: 'containers only: what each may write. The files are sparse',
  }),
  SANDBOX_UID_BASE: integer({
    default: 600_100_000,
    minimum: 100_000,
    maximum: 2 ** 31 - LIMITS.machineUsersMax,
    description:
      'users of machines from here on, one each, and the one before it; the last of the million are those of the egress proxy and of pulling images; must belong to nobody else',
  }),
  SANDBOX_BOOT_TIMEOUT_MS: integer({
    unit: 'ms',
    default: 120_000,
    minimum: 1_000,
    maximum: 3_600_000,
    description: 'until a guest is ready',
  }),
};

const capacitySettings = {
  SANDBOX_MEMORY_MIB: Type.Optional(
    integer({
      unit: 'MiB',
      minimum: 1,
      maximum: HOST_MAX,
      fallback: "80 % of the host's",
      description: `what all sandboxes that run may take together, each with ${LIMITS.machineOverheadMib} MiB and ${LIMITS.processorOverheadMib} MiB per processor besides its own memory. More than the host has is over-commitment: idle guests take far less than they may`,
    }),
  ),
  SANDBOX_VCPUS: Type.Optional(
    integer({
      minimum: 1,
      maximum: HOST_MAX,
      fallback: '16 per processor',
      description: 'processors of all sandboxes that run, together',
    }),
  ),
  SANDBOX_MEMORY_RESERVE_MIB: integer({
    unit: 'MiB',
    default: 512,
    minimum: 0,
    maximum: HOST_MAX,
    description: 'while less is available on the host, no sandbox is started',
  }),
  SANDBOX_PREWARMED: integer({
    default: 16,
    minimum: 0,
    maximum: 256,
    description:
      'prewarmed VMs or containers at most: of each of the shapes and images requested last, as many as were requested in the busiest of the last ten minutes ([sandboxes.md](sandboxes.md#creating-a-sandbox)); a VM takes some 60 MiB of memory, a container 2 MiB, each a slot. 0: none',
  }),
};

const networkSettings = {
  SANDBOX_NETWORK: Type.Enum(['on', 'off'], {
    default: 'on',
    description:
      "`off`: sandboxes reach nothing. `on` needs dnsmasq (Debian package dnsmasq-base), and turns `net.ipv4.ip_forward` on if it is off, until the agent ends and leaves no sandbox running ([network](network.md)). A firewall of the host's own that drops forwarded packets must let `bu-*` through",
  }),
  SANDBOX_DNS: list({
    form: 'IPv4 addresses',
    expected: 'IPv4 addresses',
    isFit: isIPv4,
    fallback: 'those of the host',
    description: "resolvers that sandboxes' names are asked of",
  }),
  SANDBOX_REACHABLE_NETWORKS: list({
    form: 'CIDR blocks',
    expected: 'networks such as 10.1.0.0/16',
    description:
      'private networks that sandboxes may reach, such as `10.1.0.0/16`. Never opens addresses of the host, of Redis, of control nodes or of other sandboxes',
  }),
  SANDBOX_TRUSTED_CA: Type.Optional(
    absolutePath({
      fallback: 'none',
      description:
        'certificates (PEM) that servers are verified with when a rule sends secrets to them, besides those of the system',
    }),
  ),
  SANDBOX_SLOTS: integer({
    default: 256,
    minimum: 1,
    maximum: LIMITS.slotsPerHostMax,
    description: 'network slots: how many sandboxes can run at once',
  }),
  SANDBOX_SLOTS_READY: integer({
    default: 2,
    minimum: 0,
    maximum: 64,
    description: 'how many of them are kept ready',
  }),
};

export const sandboxSettings = { ...runtimeSettings, ...capacitySettings, ...networkSettings };
