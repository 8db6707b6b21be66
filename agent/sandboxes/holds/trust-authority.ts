import { randomUUID } from 'node:crypto';
import { on } from 'node:events';
import { runInBackground } from '../../../shared/background.ts';
import { toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import type { GuestChannel } from '../../machines/guest-link/guest-channel.ts';
import { GuestUnavailableError } from '../../machines/guest-link/guest-errors.ts';
import type { GuestLink } from '../../machines/guest-link/guest-link.ts';
import type { GuestExit } from '../../machines/guest-link/guest-types.ts';
import type { SandboxRow } from '../../system/journal/sandbox-journal.ts';
import type { Machine } from '../../machines/driver.ts';
import type { SandboxPolicies } from './sandbox-policies.ts';

/* How a guest comes to trust the authority of its sandbox (docs/network.md, the egress proxy). */

const DIRECTORY = '/etc/berth';
/** The authority's certificate alone, and with all that the guest's system trusts. */
const CERTIFICATE = `${DIRECTORY}/egress-ca.crt`;
const BUNDLE = `${DIRECTORY}/ca-bundle.crt`;
const TRUST_MS_MAX = 30_000;

/**
 * Variables by which usual programs find the certificates that they trust. Node adds certificates
 * to its own, others replace theirs.
 */
const VARIABLES: Readonly<Record<string, string>> = {
  SSL_CERT_FILE: BUNDLE,
  CURL_CA_BUNDLE: BUNDLE,
  REQUESTS_CA_BUNDLE: BUNDLE,
  PIP_CERT: BUNDLE,
  AWS_CA_BUNDLE: BUNDLE,
  GIT_SSL_CAINFO: BUNDLE,
  CARGO_HTTP_CAINFO: BUNDLE,
  NODE_EXTRA_CA_CERTS: CERTIFICATE,
};

/**
 * Run in the guest, with the certificate in $CERTIFICATE. It is added to the end of the system's
 * store, in place of one that was added before: a fork has its parent's. Where there is no store,
 * as in images without the package ca-certificates, one is made of it.
 */
const SCRIPT = `
umask 022
begin='# Berth egress'
mkdir -p ${DIRECTORY} && printf '%s\\n' "$CERTIFICATE" > ${CERTIFICATE}.new || exit 1
cmp -s ${CERTIFICATE}.new ${CERTIFICATE} && [ -s ${BUNDLE} ] && exit 0
store=
for each in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt \\
  /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem; do
  [ -s "$each" ] && store=$each && break
done
if [ -z "$store" ]; then
  store=/etc/ssl/certs/ca-certificates.crt
  mkdir -p /etc/ssl/certs && : > "$store" || exit 1
fi
{ sed "/^$begin$/,\\$d" "$store" && echo "$begin" && cat ${CERTIFICATE}.new; } > ${BUNDLE}.new &&
  cat ${BUNDLE}.new > "$store" || exit 1
for each in /usr/local/share/ca-certificates /etc/pki/ca-trust/source/anchors; do
  if [ -d "$each" ]; then cp ${CERTIFICATE}.new "$each/berth-egress.crt"; fi
done
if command -v openssl > /dev/null && [ -d /etc/ssl/certs ]; then
  hash=$(openssl x509 -hash -noout -in ${CERTIFICATE}.new) &&
    ln -sf ${CERTIFICATE} "/etc/ssl/certs/$hash.0"
fi
mv ${BUNDLE}.new ${BUNDLE} && mv ${CERTIFICATE}.new ${CERTIFICATE}
`;

/** Variables for the processes of a sandbox; none unless it has to trust its authority. */
export function trustVariables({
  networkSealed,
  environment,
}: SandboxRow): Readonly<Record<string, string>> {
  if (networkSealed === undefined) return {};
  // The sandbox's own variables stay as they are.
  return Object.fromEntries(
    Object.entries(VARIABLES).filter(([name]) => !Object.hasOwn(environment, name)),
  );
}

interface Deps {
  readonly policies: SandboxPolicies;
  readonly log: Logger;
}

/**
 * Has a guest trust the authority of its sandbox if its policy brokers credentials. A guest that
 * cannot be changed so works without: what it asks of brokered hosts over TLS fails there.
 */
export async function trustOwnAuthority(
  { policies, log }: Deps,
  row: SandboxRow,
  machine: Machine,
  signal?: AbortSignal,
): Promise<void> {
  const certificate = await policies.certificate(row);
  if (certificate === undefined) return;
  const ended = new AbortController();
  runInBackground('sandbox.awaitEnd', async () => ended.abort(await machine.ended));
  const signals = signal === undefined ? [ended.signal] : [ended.signal, signal];
  try {
    await trustAuthority(machine.guest, certificate, AbortSignal.any(signals));
  } catch (error) {
    log.warn({ sandboxId: row.id, err: toError(error) }, 'sandbox:trustFailed');
  }
}

/**
 * Has a guest trust a certificate: in its system's store and in the files that the variables name.
 * Idempotent.
 * @param certificate PEM
 * @throws Error when the guest does not answer, or could not write the files
 */
async function trustAuthority(
  guest: GuestLink,
  certificate: string,
  signal: AbortSignal,
): Promise<void> {
  const limited = AbortSignal.any([signal, AbortSignal.timeout(TRUST_MS_MAX)]);
  await guest.call(limited, (channel) => runScript(channel, certificate, limited));
}

async function runScript(
  channel: GuestChannel,
  certificate: string,
  signal: AbortSignal,
): Promise<void> {
  const id = randomUUID();
  // Ends with the channel; then it is asked again on the next one.
  const exits = on(channel, 'exited', { signal, close: ['closed'] });
  await channel.start({
    ...{ id, command: SCRIPT, environment: { CERTIFICATE: certificate.trimEnd() }, directory: '/' },
    user: '0:0',
    ...{ terminal: undefined, stdin: false, isFollowed: false, isAttachable: false },
    timeoutMs: TRUST_MS_MAX,
  });
  for await (const [exit] of exits as AsyncIterable<[GuestExit]>) {
    if (exit.processId !== id) continue;
    await channel.forget(id);
    if (exit.exitCode === 0) return;
    throw new Error(`the guest could not write its certificates (${exit.exitCode})`);
  }
  throw new GuestUnavailableError('the channel closed');
}
