/* `scripts/admin host invite`: a token with which one new host joins. */
import { constants, type Stats } from 'node:fs';
import { type FileHandle, open, readFile, stat } from 'node:fs/promises';
import { isIP } from 'node:net';
import { dirname } from 'node:path';
import Type from 'typebox';
import type { HostInvitations } from '../shared/directory/host-invitations.ts';
import {
  invitationIdOf,
  newJoinToken,
  proofOf,
  sealJoinBundle,
} from '../shared/host-invitation.ts';
import { newEventId } from '../shared/ids.ts';
import { ClusterSettings } from '../shared/settings/cluster-settings.ts';
import { readClusterConfig } from '../shared/settings/cluster-config.ts';
import { ControlSettings } from '../shared/settings/control-settings.ts';
import { readSettings } from '../shared/settings/read-settings.ts';
import { MINUTE_MS } from '../shared/units.ts';
import { HOST_SHARED, JOINED, pickPresent } from './install-roles.ts';
import { commands } from './local-paths.ts';

const { PUBLIC_BASE_URL, AUDIT_LOG } = ControlSettings.properties;
const Settings = Type.Object({ ...ClusterSettings.properties, PUBLIC_BASE_URL, AUDIT_LOG });
const { O_APPEND, O_CREAT, O_EXCL, O_NOFOLLOW, O_WRONLY } = constants;
const SHOWN_ID_LENGTH = 16;

const isLoopback = (url: string): boolean => {
  const { hostname } = new URL(url);
  return hostname === 'localhost' || (isIP(hostname) === 4 && hostname.startsWith('127.'));
};

/**
 * Makes an invitation from this node's own configuration.
 * @throws ConfigurationError when the environment is not that of a control node
 */
export async function inviteHost(
  invitations: HostInvitations,
  env: NodeJS.ProcessEnv,
  minutes: number,
): Promise<object> {
  const settings = readSettings(Settings, env);
  readClusterConfig(settings);
  const { PUBLIC_BASE_URL: url, REDIS_URL: redisUrl, AUDIT_LOG: auditLog } = settings;
  const given = Object.fromEntries(
    Object.entries(env).flatMap(([name, value]) => (value === undefined ? [] : [[name, value]])),
  );
  const names: Record<string, string> = pickPresent(given, [...HOST_SHARED, ...JOINED]);
  const files: Record<string, string> = {};
  for (const name of ['REDIS_TLS_CA', 'CLUSTER_TLS_CA'] as const) {
    const path = settings[name];
    if (path !== undefined) files[name] = await readFile(path, 'utf8');
    delete names[name];
  }
  const token = newJoinToken();
  const id = invitationIdOf(proofOf(token));
  const ttlMs = minutes * MINUTE_MS;
  const createdAt = new Date().toISOString();
  if (auditLog !== undefined) {
    const details = { outcome: 'done', actor: 'operator', invitationId: shown(id), minutes };
    const event = { eventId: newEventId(), eventType: 'host.invited', level: 'info', createdAt };
    await appendAudit(auditLog, JSON.stringify({ ...event, details }));
  }
  await invitations.add(id, sealJoinBundle(token, { settings: names, files }), ttlMs);
  const isLocal = isLoopback(url) || (redisUrl !== undefined && isLoopback(redisUrl));
  return {
    id: shown(id),
    token,
    expiresAt: new Date(Date.parse(createdAt) + ttlMs).toISOString(),
    command: `${commands.agent} join ${url} ${token} --address <address of the new host>`,
    ...(isLocal
      ? { warning: 'PUBLIC_BASE_URL or REDIS_URL is a loopback address: no other host reaches it' }
      : {}),
  };
}

/** @throws Error when there is a file already */
async function openNew(path: string, { uid, gid }: Stats): Promise<FileHandle> {
  const file = await open(path, O_WRONLY | O_APPEND | O_CREAT | O_EXCL, 0o600);
  if (process.getuid?.() === 0) await file.chown(uid, gid);
  return file;
}

/**
 * Appends to the audit log of a control node, which must stay able to write it: a file that is made
 * here belongs to the owner of its directory. That owner has fewer rights than root, whom a link
 * of theirs must not lead to another file.
 * @throws Error that says what to do when the node has not run yet
 */
async function appendAudit(path: string, line: string): Promise<void> {
  const directory = await stat(dirname(path)).catch((cause: unknown) => {
    const message = `AUDIT_LOG: ${dirname(path)} is missing: start control on this host, which makes it`;
    throw new Error(message, { cause });
  });
  await using file = await openNew(path, directory).catch(() =>
    open(path, O_WRONLY | O_APPEND | O_NOFOLLOW),
  );
  await file.appendFile(`${line}\n`);
}

const shown = (id: string): string => id.slice(0, SHOWN_ID_LENGTH);
