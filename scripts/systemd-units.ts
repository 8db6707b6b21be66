/** Files that `scripts/install` writes for systemd and logrotate. Only the agent runs as root. */
import { join } from 'node:path';

/** For systemd-sysusers. */
export const SYSUSERS = `u berth-redis - "Berth directory" /var/lib/berth-redis
u berth-control - "Berth control node" -
`;

/** AUDIT_LOG may be renamed at any time, without a signal; control makes the new file. */
export const LOGROTATE = `/var/log/berth-control/*.log {
  su berth-control berth-control
  monthly
  rotate 24
  missingok
  notifempty
  nocreate
  compress
  delaycompress
}
`;

/**
 * Restrictions of services without privileges. JIT compilation needs memory that is written and
 * run.
 */
const SANDBOX = `NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
UMask=0077`;

const quoted = (path: string): string => `"${path.replaceAll('%', '%%')}"`;

/** @param ordering what the unit comes after, and what it needs */
const unit = (description: string, ordering: string, service: string): string => `[Unit]
Description=${description}
${ordering}

[Service]
${service}
`;

/**
 * The unit of a service that is enabled, and comes after the network and other roles of the same
 * host. systemd starts it again however often it fails: what it waits for may come back at any
 * time.
 */
const roleUnit = (description: string, ordering: string, service: string): string =>
  `${unit(description, `Wants=network-online.target\nAfter=network-online.target ${ordering}\nStartLimitIntervalSec=0`, service)}Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target
`;

const redisUnit = (): string =>
  roleUnit(
    'Berth directory (Redis)',
    '',
    `User=berth-redis
StateDirectory=berth-redis
StateDirectoryMode=0700
LoadCredential=redis.conf:/etc/berth/redis.conf
ExecStart=/usr/bin/redis-server %d/redis.conf
TimeoutStopSec=20
LimitNOFILE=16384
${SANDBOX}`,
  );

/**
 * By itself V8 lets control's old generation grow to a multiple of what lives in it, all garbage of
 * ended calls; 30 percent keeps resident memory flat for 5 % more processor time in each call.
 */
const controlUnit = (checkout: string): string =>
  roleUnit(
    'Berth control node',
    'berth-redis.service',
    `User=berth-control
CacheDirectory=berth-control
LogsDirectory=berth-control
LogsDirectoryMode=0700
Environment=NODE_COMPILE_CACHE=/var/cache/berth-control
LoadCredential=control.env:/etc/berth/control.env
ExecStart=${join(checkout, 'node_modules/.bin/node')} --max-semi-space-size=8 --heap-growing-percent=30 ${join(checkout, 'control/main.ts')} --config %d/control.env
TimeoutStopSec=330
LimitNOFILE=16384
${SANDBOX}`,
  );

const MACHINES = 'berth-machines.service';

/**
 * The agent's groups are delegated to a unit that outlives it, since systemd is the only writer of
 * all others (its CGROUP_DELEGATION.md). It is AGENT_CGROUP of a host that has systemd.
 */
export const MACHINES_CGROUP = `/berth.slice/${MACHINES}`;

/**
 * Holds the control groups of all that the agent starts: machines, commands, helpers. A group that
 * has controllers for its children has no process of its own, so the process that keeps the unit
 * alive is in a child group. Where the storage is a mount of its own, nothing begins before it is
 * there, and all has ended before it goes. systemd replaces `$$` with `$`.
 */
const machinesUnit = (directories: readonly string[]): string =>
  unit(
    'Control groups of Berth: machines, commands and helpers of the agent',
    `RequiresMountsFor=${directories.map(quoted).join(' ')}`,
    `Type=notify
NotifyAccess=all
Slice=berth.slice
Delegate=yes
ExecStart=/bin/sh -c 'cd /sys/fs/cgroup${MACHINES_CGROUP} 2>/dev/null && mkdir -p keeper && echo $$$$ >keeper/cgroup.procs; systemd-notify --ready && exec sleep infinity'
TasksMax=infinity
OOMPolicy=continue
OOMScoreAdjust=-1000
TimeoutStopSec=10`,
  );

/**
 * Where machines are to end as well, since the host goes down or their unit is to stop, SIGPWR has
 * the agent pause them. At any other stop they run on.
 */
const PAUSE_IF_MACHINES_STOP =
  `[ -z "$$(systemctl show --property=Job --value ${MACHINES})" ] || ` +
  '{ kill -s PWR $$MAINPID && exec tail --pid=$$MAINPID -f /dev/null; }';

/**
 * The agent mounts, makes control groups and namespaces, and starts machines, which outlive it and
 * must not be killed with it. Nothing here may give it a mount namespace or a filter of system
 * calls: the next agent would not see the former one's mounts and networks, and commands and
 * machines would inherit the filter.
 */
const agentUnit = (checkout: string): string =>
  roleUnit(
    'Berth agent',
    `berth-redis.service berth-control.service ${MACHINES}\nRequires=${MACHINES}`,
    `StateDirectory=berth
StateDirectoryMode=0711
CacheDirectory=berth-agent
Environment=UV_THREADPOOL_SIZE=32 NODE_COMPILE_CACHE=/var/cache/berth-agent
ExecStart=${join(checkout, 'node_modules/.bin/node')} --max-semi-space-size=8 ${join(checkout, 'agent/main.ts')} --config /etc/berth/agent.env
ExecStop=-/bin/sh -c '${PAUSE_IF_MACHINES_STOP}'
KillMode=process
TimeoutStopSec=150
LimitNOFILE=65536
TasksMax=infinity
OOMScoreAdjust=-900`,
  );

/**
 * @param checkout where the sources are
 * @param directories of the agent, which may be mounts of their own
 * @returns the units of the role, by their names; the first is the one to enable
 */
export function unitsOf(
  role: 'redis' | 'control' | 'agent',
  checkout: string,
  directories: readonly string[],
): ReadonlyMap<string, string> {
  if (role === 'redis') return new Map([['berth-redis.service', redisUnit()]]);
  if (role === 'control') return new Map([['berth-control.service', controlUnit(checkout)]]);
  return new Map([
    ['berth-agent.service', agentUnit(checkout)],
    [MACHINES, machinesUnit(directories)],
  ]);
}
