/** The systemd units that `scripts/install` writes. Only the agent runs as root. */
import { join } from 'node:path';

/** For systemd-sysusers. */
export const SYSUSERS = `u berth-redis - "Berth directory" /var/lib/berth-redis
u berth-control - "Berth control node" -
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

const unit = (description: string, after: string, service: string): string => `[Unit]
Description=${description}
Wants=network-online.target
After=network-online.target ${after}

[Service]
${service}
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
`;

const redisUnit = (): string =>
  unit(
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

const controlUnit = (checkout: string): string =>
  unit(
    'Berth control node',
    'berth-redis.service',
    `User=berth-control
CacheDirectory=berth-control
LogsDirectory=berth-control
LogsDirectoryMode=0700
Environment=NODE_COMPILE_CACHE=/var/cache/berth-control
LoadCredential=control.env:/etc/berth/control.env
ExecStart=${join(checkout, 'node_modules/.bin/node')} --max-semi-space-size=8 ${join(checkout, 'control/main.ts')} --config %d/control.env
TimeoutStopSec=330
LimitNOFILE=16384
${SANDBOX}`,
  );

/**
 * While the host goes down, machines would be killed with it: SIGPWR has the agent pause them. At any
 * other stop they run on. systemd replaces `$$` with `$`.
 */
const PAUSE_ON_SHUTDOWN =
  'case $$(systemctl is-system-running) in stopping) ' +
  'kill -s PWR $$MAINPID && exec tail --pid=$$MAINPID -f /dev/null;; esac';

/**
 * The agent mounts, makes control groups and namespaces, and starts machines, which outlive it and
 * must not be killed with it. Nothing here may give it a mount namespace or a filter of system calls:
 * the next agent would not see the former one's mounts and networks, and commands and machines would
 * inherit the filter.
 */
const agentUnit = (checkout: string): string =>
  unit(
    'Berth agent',
    'berth-redis.service berth-control.service',
    `StateDirectory=berth
StateDirectoryMode=0711
CacheDirectory=berth-agent
Environment=UV_THREADPOOL_SIZE=32 NODE_COMPILE_CACHE=/var/cache/berth-agent
ExecStart=${join(checkout, 'node_modules/.bin/node')} --max-semi-space-size=8 ${join(checkout, 'agent/main.ts')} --config /etc/berth/agent.env
ExecStop=-/bin/sh -c '${PAUSE_ON_SHUTDOWN}'
KillMode=process
TimeoutStopSec=150
LimitNOFILE=65536
TasksMax=infinity
OOMScoreAdjust=-900`,
  );

/** @param checkout where the sources are */
export const unitOf = (role: 'redis' | 'control' | 'agent', checkout: string): string =>
  ({ redis: redisUnit(), control: controlUnit(checkout), agent: agentUnit(checkout) })[role];
