import { randomBytes } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { authorityOf } from '../agent/network/egress/authority.ts';
import { NFT, runWithin } from '../agent/network/slots/nft.ts';
import { slotsWithNamespace } from '../agent/network/slots/slot-namespace.ts';
import { planSlot, type SlotPlan } from '../agent/network/slots/slot.ts';
import { paths } from '../agent/system/paths.ts';
import { parseJson } from '../shared/json.ts';
import { MiB } from '../shared/units.ts';
import type { Environment } from '../test/helpers/daemon.ts';
import { Outside, serveWithin } from '../test/helpers/outside.ts';
import { sandboxSettings } from '../test/helpers/sandboxes.ts';
import { Stack } from '../test/helpers/stack.ts';
import { temporaryDirectory } from '../test/helpers/temporary.ts';
import { readFlags } from './flags.ts';
import { SandboxCalls } from './sandbox-calls.ts';
import { inTurns, printComparison } from './statistics.ts';

const MEM_SIZE_MIB = 256;
const PORT = 7002;
const TRANSFER_BYTES = 64 * MiB;
/** After a removal, so that nothing of it is still being cleared away. */
const REST_MS = 1_000;

/** In the guest: how many seconds the transfer of so many bytes took. */
const CLIENT = `
import socket, sys, time
way, host, port, left = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with socket.create_connection((host, port)) as peer:
    peer.sendall(f'{way} {left}\\n'.encode())
    began = time.monotonic()
    while way == 'down' and left > 0:
        left -= len(peer.recv(262144))
    while way == 'up' and left > 0:
        left -= peer.send(bytes(min(left, 262144)))
    if way == 'up':
        peer.recv(1)
    print(time.monotonic() - began)
`;

/**
 * In the guest: how many seconds so many requests over TLS took, and what the last was answered.
 */
const ASK = `
import http.client, ssl, sys, time
kept, host, trusted, count = sys.argv[1] == 'kept', sys.argv[2], sys.argv[3], int(sys.argv[4])
context = ssl.create_default_context(cafile=None if trusted == '-' else trusted)
connection = None
began = time.monotonic()
for _ in range(count):
    connection = connection or http.client.HTTPSConnection(host, context=context, timeout=20)
    connection.request('GET', '/')
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body
    if not kept:
        connection.close()
        connection = None
print(time.monotonic() - began)
`;
const REQUESTS = 20;
const NAME = 'api.test';

const stackWith = (settings: Environment): Promise<Stack> =>
  Stack.start({ ...sandboxSettings(), ...settings });

async function creator(stack: Stack): Promise<() => Promise<number>> {
  const calls = new SandboxCalls(await stack.newClient());
  return async () => {
    const { outputMs } = await calls.startOnce(MEM_SIZE_MIB);
    await sleep(REST_MS);
    return outputMs;
  };
}

/** Creates with a network and without, each on an agent of its own. */
async function benchCreate(rounds: number, prewarmed: number): Promise<void> {
  const settings = { SANDBOX_PREWARMED: String(prewarmed) };
  await using outside = await Outside.open();
  await using networked = await stackWith({ ...settings, ...outside.settings });
  await using closed = await stackWith({ ...settings, SANDBOX_NETWORK: 'off' });
  const sides = { ours: await creator(networked), baseline: await creator(closed) };
  const title = `create to first output, ${prewarmed} prewarmed, ${rounds} alternating pairs`;
  const names = { ours: 'with a network', baseline: 'SANDBOX_NETWORK=off' };
  const times = await inTurns(rounds, sides, 1); // The first makes a template.
  printComparison(title, times, names, { unit: 'ms', target: '≤ 1.25' });
}

/** The slot of the only machine that runs on this stack's host. */
async function slotInUse(stack: Stack): Promise<SlotPlan> {
  const file = paths.hostId(stack.environment['AGENT_DATA_DIR'] ?? '');
  const hostId = (await readFile(file, 'utf8')).trim();
  for (const index of await slotsWithNamespace(hostId)) {
    const plan = planSlot(hostId, index);
    const shown = await runWithin(plan.namespace, ['ip', '-json', 'link', 'show', plan.tap]);
    const [link] = parseJson(shown) as [{ flags: string[] }];
    if (link.flags.includes('LOWER_UP')) return plan;
  }
  throw new Error('no slot is in use');
}

/** Through slot, router and host to the outside, and by the same tap to its other end alone. */
async function benchThroughput(rounds: number): Promise<void> {
  await using outside = await Outside.open();
  await outside.serve('transfer', PORT);
  await using stack = await stackWith(outside.settings);
  const calls = new SandboxCalls(await stack.newClient());
  const id = await calls.createRunning(MEM_SIZE_MIB);
  const { namespace, tap, gatewayAddress } = await slotInUse(stack);
  const rule = ['iifname', tap, 'tcp', 'dport', String(PORT), 'accept'];
  await runWithin(namespace, [NFT, 'insert', 'rule', 'inet', 'berth', 'input', ...rule]);
  const server = await serveWithin(namespace, 'transfer', PORT);
  try {
    await calls.output(id, `cat > /root/transfer.py <<'END'\n${CLIENT}\nEND`);
    const rate = (way: string, host: string) => async (): Promise<number> => {
      const command = `python3 /root/transfer.py ${way} ${host} ${PORT} ${TRANSFER_BYTES}`;
      return TRANSFER_BYTES / MiB / Number(await calls.output(id, command));
    };
    for (const way of ['up', 'down']) {
      const sides = {
        ours: rate(way, outside.address(0)),
        baseline: rate(way, gatewayAddress),
      };
      const title = `${way}load of ${TRANSFER_BYTES / MiB} MiB by a guest, ${rounds} alternating pairs`;
      const names = { ours: 'outside', baseline: 'bare tap' };
      const rates = await inTurns(rounds, sides, 1); // The emulator translates the guest's code.
      printComparison(title, rates, names, { unit: 'MiB/s', target: '≥ 0.90' });
    }
  } finally {
    server.kill();
  }
}

/** The same requests over TLS to a server outside, by a sandbox that a policy adds a header for. */
async function benchBrokering(rounds: number): Promise<void> {
  await using outside = await Outside.open({ [NAME]: 1 });
  await using directory = await temporaryDirectory();
  const { certificate, key } = await authorityOf(randomBytes(32), 'outside');
  const trusted = join(directory.path, 'outside.pem');
  await writeFile(trusted, certificate);
  const server = new URL('../test/fixtures/outside-https.ts', import.meta.url).pathname;
  const keys = { CERTIFICATE: certificate, KEY: key };
  await outside.start([process.execPath, server, '443', NAME], keys);
  await using stack = await stackWith({ SANDBOX_TRUSTED_CA: trusted, ...outside.settings });
  const calls = new SandboxCalls(await stack.newClient());
  const headers = { authorization: 'Bearer sk-of-the-benchmark' };
  const egress = { default: 'deny', allow: [{ target: NAME, transform: { headers } }] };
  const asker = async (kind: string, id: string, store: string) => {
    await calls.output(id, `cat > /root/ask.py <<'END'\n${ASK}\nEND`);
    await calls.output(id, `cat > /root/outside.pem <<'END'\n${certificate}\nEND`);
    const command = `python3 /root/ask.py ${kind} ${NAME} ${store} ${REQUESTS}`;
    return async () => (1000 * Number(await calls.output(id, command))) / REQUESTS;
  };
  const brokered = await calls.createRunning(MEM_SIZE_MIB, { network: { egress } });
  const direct = await calls.createRunning(MEM_SIZE_MIB);
  for (const [kind, about] of [
    ['new', 'a connection for each'],
    ['kept', 'one kept connection'],
  ] as const) {
    const sides = {
      ours: await asker(kind, brokered, '-'),
      baseline: await asker(kind, direct, '/root/outside.pem'),
    };
    const title = `a request over TLS by a guest, ${about}, ${rounds} alternating pairs of ${REQUESTS}`;
    const names = { ours: 'with a header added', baseline: 'direct' };
    const times = await inTurns(rounds, sides, 1);
    printComparison(title, times, names, { unit: 'ms', target: '≤ 2.00' });
  }
}

/** `npm run bench -- network`: see docs/benchmarks.md. */
export async function benchNetwork(args: readonly string[]): Promise<void> {
  const known = { rounds: 50, prewarmed: 2 };
  const parts = ['create', 'throughput', 'brokering'] as const;
  const { rounds, prewarmed, only } = readFlags(args, known, parts);
  if (only.has('create')) await benchCreate(rounds, prewarmed);
  if (only.has('throughput')) await benchThroughput(Math.min(rounds, 10));
  if (only.has('brokering')) await benchBrokering(Math.min(rounds, 10));
}
