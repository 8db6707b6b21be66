import assert from 'node:assert';
import { randomBytes } from 'node:crypto';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { authorityOf } from '../agent/network/egress/authority.ts';
import { runWithin } from '../agent/network/slots/nft.ts';
import { slotsWithNamespace } from '../agent/network/slots/slot-namespace.ts';
import { planSlot, type SlotPlan } from '../agent/network/slots/slot.ts';
import { paths } from '../agent/system/paths.ts';
import { parseJson } from '../shared/json.ts';
import { MiB } from '../shared/units.ts';
import type { Environment } from '../test/helpers/daemon.ts';
import { Outside, serveWithin } from '../test/helpers/outside.ts';
import { sandboxSettings } from '../test/helpers/sandboxes.ts';
import { Stack } from '../test/helpers/stack.ts';
import { SandboxCalls } from './sandbox-calls.ts';
import { printComparison, timed } from './statistics.ts';

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

async function withStack(settings: Environment, work: (stack: Stack) => Promise<void>) {
  const stack = await Stack.start({ ...sandboxSettings(), ...settings }, [], true);
  try {
    await work(stack);
  } finally {
    await stack.stop();
  }
}

const callsOf = async (stack: Stack): Promise<SandboxCalls> =>
  new SandboxCalls(await stack.newClient(), new AbortController().signal);

/** Creates with a network and without, each on an agent of its own. */
async function benchCreate(rounds: number, prewarmed: number): Promise<void> {
  const settings = { SANDBOX_PREWARMED: String(prewarmed) };
  await using outside = await Outside.open();
  await withStack({ ...settings, ...outside.settings }, (networked) =>
    withStack({ ...settings, SANDBOX_NETWORK: 'off' }, async (closed) => {
      const sides = { ours: await callsOf(networked), baseline: await callsOf(closed) };
      const times = { ours: [] as number[], baseline: [] as number[] };
      for (let round = 0; round <= rounds; round += 1) {
        for (const side of ['ours', 'baseline'] as const) {
          const calls = sides[side];
          let id = '';
          const ms = await timed(async () => {
            id = await calls.createRunning(MEM_SIZE_MIB);
            assert.equal(await calls.output(id, 'echo ready'), 'ready\n');
          });
          await calls.remove(id);
          await sleep(REST_MS);
          if (round > 0) times[side].push(ms); // The first makes a template.
        }
      }
      const title = `create to first output, ${prewarmed} prewarmed, ${rounds} alternating pairs`;
      const names = { ours: 'with a network', baseline: 'SANDBOX_NETWORK=off' };
      printComparison(title, times, names, { unit: 'ms', target: '≤ 1.25' });
    }),
  );
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
  await withStack({ SANDBOX_PREWARMED: '0', ...outside.settings }, async (stack) => {
    const calls = await callsOf(stack);
    const id = await calls.createRunning(MEM_SIZE_MIB);
    const slot = await slotInUse(stack);
    const rule = ['iifname', slot.tap, 'tcp', 'dport', String(PORT), 'accept'];
    await runWithin(slot.namespace, [
      '/usr/sbin/nft',
      'insert',
      'rule',
      'inet',
      'berth',
      'input',
      ...rule,
    ]);
    const server = await serveWithin(slot.namespace, 'transfer', PORT);
    await calls.output(id, `cat > /root/transfer.py <<'END'\n${CLIENT}\nEND`);
    const rate = async (way: string, host: string): Promise<number> => {
      const command = `python3 /root/transfer.py ${way} ${host} ${PORT} ${TRANSFER_BYTES}`;
      return TRANSFER_BYTES / MiB / Number(await calls.output(id, command));
    };
    for (const way of ['up', 'down']) {
      const rates = { ours: [] as number[], baseline: [] as number[] };
      for (let round = 0; round <= rounds; round += 1) {
        const ours = await rate(way, outside.address(0));
        const baseline = await rate(way, slot.gatewayAddress);
        if (round === 0) continue; // Unmeasured: the emulator translates the guest's code.
        rates.ours.push(ours);
        rates.baseline.push(baseline);
      }
      const title = `${way}load of ${TRANSFER_BYTES / MiB} MiB by a guest, ${rounds} alternating pairs`;
      const names = { ours: 'outside', baseline: 'bare tap' };
      printComparison(title, rates, names, { unit: 'MiB/s', target: '≥ 0.90' });
    }
    server.kill();
    await calls.remove(id);
  });
}

/** The same requests over TLS to a server outside, by a sandbox that a policy adds a header for. */
async function benchBrokering(rounds: number): Promise<void> {
  await using outside = await Outside.open({ [NAME]: 1 });
  const directory = await mkdtemp(join(tmpdir(), 'berth-bench-'));
  try {
    const { certificate, key } = await authorityOf(randomBytes(32), 'outside');
    const trusted = join(directory, 'outside.pem');
    await writeFile(trusted, certificate);
    const server = new URL('../test/fixtures/outside-https.ts', import.meta.url).pathname;
    const keys = { CERTIFICATE: certificate, KEY: key };
    await outside.start([process.execPath, server, '443', NAME], keys);
    const settings = { SANDBOX_PREWARMED: '0', SANDBOX_TRUSTED_CA: trusted };
    await withStack({ ...settings, ...outside.settings }, async (stack) => {
      const calls = await callsOf(stack);
      const headers = { authorization: 'Bearer sk-of-the-benchmark' };
      const allow = [{ target: NAME, transform: { headers } }];
      const sides = {
        ours: await calls.createRunning(MEM_SIZE_MIB, {
          network: { egress: { default: 'deny', allow } },
        }),
        baseline: await calls.createRunning(MEM_SIZE_MIB),
      };
      for (const id of Object.values(sides)) {
        await calls.output(id, `cat > /root/ask.py <<'END'\n${ASK}\nEND`);
        await calls.output(id, `cat > /root/outside.pem <<'END'\n${certificate}\nEND`);
      }
      for (const kind of ['new', 'kept']) {
        const times = { ours: [] as number[], baseline: [] as number[] };
        for (let round = 0; round <= rounds; round += 1) {
          for (const side of ['ours', 'baseline'] as const) {
            const store = side === 'ours' ? '-' : '/root/outside.pem';
            const command = `python3 /root/ask.py ${kind} ${NAME} ${store} ${REQUESTS}`;
            const ms = (1000 * Number(await calls.output(sides[side], command))) / REQUESTS;
            if (round > 0) times[side].push(ms); // The first translates the guest's code.
          }
        }
        const about = kind === 'kept' ? 'one kept connection' : 'a connection for each';
        const title = `a request over TLS by a guest, ${about}, ${rounds} alternating pairs of ${REQUESTS}`;
        const names = { ours: 'with a header added', baseline: 'direct' };
        printComparison(title, times, names, { unit: 'ms', target: '≤ 2.00' });
      }
      for (const id of Object.values(sides)) await calls.remove(id);
    });
  } finally {
    await rm(directory, { recursive: true });
  }
}

/** `npm run bench -- network [--rounds N] [--prewarmed N] [--only create,throughput,brokering]`. */
export async function benchNetwork(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      rounds: { type: 'string', default: '50' },
      prewarmed: { type: 'string', default: '2' },
      only: { type: 'string', default: 'create,throughput,brokering' },
    },
  });
  const rounds = Number(values.rounds);
  assert(Number.isInteger(rounds) && rounds > 0, '--rounds: a number from 1 on');
  const only = values.only.split(',');
  if (only.includes('create')) await benchCreate(rounds, Number(values.prewarmed));
  if (only.includes('throughput')) await benchThroughput(Math.min(rounds, 10));
  if (only.includes('brokering')) await benchBrokering(Math.min(rounds, 10));
}
