/* Plays callers, and compares the answers with the model. */
import { randomUUID } from 'node:crypto';
import type { SandboxActor } from '../../agent/sandboxes/lifecycle/sandbox-actor.ts';
import type { SandboxExecSpec } from '../../agent/sandboxes/execs/sandbox-execs.ts';
import { AppError } from '../../shared/errors.ts';
import { newSandboxId } from '../../shared/ids.ts';
import type { Random } from '../helpers/random.ts';
import { DIGEST } from '../helpers/in-memory-images.ts';
import type { Known, KnownSnapshot } from './ledger.ts';
import { endSnapshot, takeSnapshot } from './snapshots.ts';
import type { World } from './world.ts';

const ACCOUNTS = ['acct-00000000000000a1', 'acct-00000000000000b2', 'acct-00000000000000c3'];
/** So many that hosts and slots are full now and then. */
const SANDBOXES_MAX = 16;
const MEMORY_MIB = 256;
/** An image of a registry; with its digest, as one that was built before. */
const IMAGE = { reference: 'registry.example/team/app:1' } as const;

const actions = {
  create: 10,
  start: 8,
  stop: 5,
  pause: 8,
  resume: 9,
  fork: 5,
  snapshot: 3,
  createFromSnapshot: 4,
  deleteSnapshot: 2,
  delete: 5,
  setLimits: 4,
  exec: 22,
  cancelExec: 3,
  discard: 1,
  republish: 1,
} as const;
type Action = keyof typeof actions;

/** Like `pick`, of values that may be undefined. */
const draw = <T>(random: Random, values: readonly T[]): T | undefined =>
  values[random.integer(0, values.length - 1)];

/** Sends a request of any caller; the answer comes when it comes. */
export function act(world: World): void {
  const { random, ledger, agent } = world;
  if (!agent.isReady) return;
  const action = random.weighted(actions);
  if (action === 'create') return create(world);
  if (action === 'createFromSnapshot' || action === 'deleteSnapshot') {
    const { presentSnapshots } = ledger;
    if (presentSnapshots.length === 0) return;
    const snapshot = random.pick(presentSnapshots);
    if (action === 'deleteSnapshot') return endSnapshot(world, snapshot, callAbout);
    return createFromSnapshot(world, snapshot);
  }
  const known = ledger.present.length === 0 ? undefined : random.pick(ledger.present);
  if (known !== undefined) ask(world, action, known);
}

type SandboxAction = Exclude<Action, 'create' | 'createFromSnapshot' | 'deleteSnapshot'>;

function ask(world: World, action: SandboxAction, known: Known): void {
  const { registry } = world.agent.parts;
  const ref = { accountId: known.accountId, sandboxId: known.id };
  const find = (): SandboxActor => registry.find(ref);
  switch (action) {
    case 'start':
    case 'stop':
    case 'pause':
    case 'resume':
      return call(world, action, known, async () => {
        const actor = find();
        await actor[action]();
        world.ledger.see(known, actor.record);
      });
    case 'fork':
      return fork(world, known);
    case 'snapshot':
      return takeSnapshot(world, known, callAbout);
    case 'delete':
    case 'discard':
      return end(world, action, known);
    case 'setLimits':
      return setLimits(world, known);
    case 'exec':
      return exec(world, known);
    case 'cancelExec':
      return call(world, action, known, async () => {
        const running = (await find().execs()).filter(({ status }) => status === 'running');
        if (running.length > 0) await find().cancelExec(world.random.pick(running).id);
      });
    case 'republish':
      return call(world, action, known, () => registry.republish());
  }
}

/** Begins a call and keeps its answer; one that an agent's end cut off is never answered. */
function call(world: World, what: string, known: Known, work: () => Promise<void>): void {
  callAbout(world, what, known.id, work);
}

function callAbout(world: World, what: string, about: string, work: () => Promise<void>): void {
  const { agent, waiting } = world;
  const name = `${what} ${about}`;
  const token = `${name} ${randomUUID()}`;
  world.note(what, name);
  waiting.add(token);
  const answered = (answer: string): void => {
    if (agent.isDead) return;
    waiting.delete(token);
    world.note('answer', `${name}: ${answer}`);
  };
  agent.run(() => {
    work().then(
      () => answered('done'),
      (error: unknown) => answered(error instanceof AppError ? error.code : String(error)),
    );
  });
}

function create(world: World): void {
  const { random, ledger, agent } = world;
  if (ledger.present.length >= SANDBOXES_MAX) return;
  const [id, name] = [newSandboxId(), `sandbox-${ledger.sandboxes.size}`];
  const [maxTtlSeconds, idleTtlSeconds] = [
    random.pick([20, 90, 3600]),
    random.pick([0, 0, 15, 60]),
  ];
  const known = ledger.add(id, random.pick(ACCOUNTS), name, idleTtlSeconds);
  const config = {
    ...{ name, maxTtlSeconds, idleTtlSeconds, maxConcurrentExecs: 3, baseImage: 'default' },
    ...{ memSizeMib: MEMORY_MIB, vcpuCount: random.pick([1, 1, 1, 2]) },
  };
  const { accountId } = known;
  const image = draw(random, [undefined, undefined, IMAGE, { ...IMAGE, digest: DIGEST }]);
  const made = { sandboxId: id, accountId, config, environment: {}, image };
  call(world, 'create', known, () => bear(world, known, agent.parts.creator.create(made)));
}

function fork(world: World, source: Known): void {
  const { ledger, agent } = world;
  if (ledger.present.length >= SANDBOXES_MAX) return;
  const [id, name] = [newSandboxId(), `fork-${ledger.sandboxes.size}`];
  const known = ledger.add(id, source.accountId, name, 0);
  known.idleTtlsSeconds = [...source.idleTtlsSeconds];
  const ref = { accountId: source.accountId, sandboxId: source.id };
  // Only what was there before is sure to be copied.
  const files = source.written.filter(({ path }) => !path.startsWith('/run/'));
  call(world, 'fork', known, async () => {
    await bear(
      world,
      known,
      agent.parts.creator.fork(ref, { sandboxId: id, name, checkpoint: undefined }),
    );
    known.written.push(...files);
  });
}

function createFromSnapshot(world: World, snapshot: KnownSnapshot): void {
  const { ledger, agent, random } = world;
  if (ledger.present.length >= SANDBOXES_MAX) return;
  const [id, name] = [newSandboxId(), `copy-${ledger.sandboxes.size}`];
  const idleTtlSeconds = random.pick([0, 15]);
  const known = ledger.add(id, snapshot.accountId, name, idleTtlSeconds);
  const given = {
    ...{ sandboxId: id, accountId: snapshot.accountId, snapshotId: snapshot.id },
    ...{ config: { name, idleTtlSeconds }, environment: undefined, network: undefined },
  };
  call(world, 'createFromSnapshot', known, async () => {
    await bear(world, known, agent.parts.creator.createFromSnapshot(given));
    known.written.push(...snapshot.files);
  });
}

/** A refused one must leave nothing. */
async function bear(world: World, known: Known, made: Promise<SandboxActor>): Promise<void> {
  const { agent, ledger } = world;
  try {
    const actor = await made;
    if (!known.isEnding) known.fate = 'there';
    ledger.see(known, actor.record);
  } catch (error) {
    if (!agent.isDead) known.fate = 'gone';
    throw error;
  }
}

function end(world: World, action: 'delete' | 'discard', known: Known): void {
  const { agent } = world;
  const { registry, creator } = agent.parts;
  const ref = { accountId: known.accountId, sandboxId: known.id };
  call(world, action, known, async () => {
    known.ends += 1;
    known.isEnding = true;
    known.fate = 'maybe';
    try {
      if (action === 'discard') await creator.discard(ref);
      else await registry.delete(ref);
    } finally {
      if (!agent.isDead) known.ends -= 1;
    }
    if (agent.isDead) return;
    // Several may ask for it: only the last answer tells.
    if (known.ends > 0) return;
    const isThere = world.rowOf(known.id) !== undefined;
    known.fate = isThere ? (known.record === undefined ? 'maybe' : 'there') : 'gone';
  });
}

function setLimits(world: World, known: Known): void {
  const { random, agent } = world;
  const timeoutSeconds = draw(random, [undefined, 10, 60, 600]);
  const idleTtlSeconds = draw(random, [undefined, 0, 10, 100]);
  const askedAt = world.time.monotonicMs;
  // Until it is answered both the old and the new one may count.
  if (idleTtlSeconds !== undefined) {
    known.idleTtlsSeconds = [...known.idleTtlsSeconds, idleTtlSeconds];
  }
  const expiresFrom = timeoutSeconds === undefined ? Infinity : askedAt + timeoutSeconds * 1000;
  known.expiresFrom = Math.min(known.expiresFrom, expiresFrom);
  const others = known.limitCalls === 0 ? Infinity : known.limitCallsExpireFrom;
  known.limitCallsExpireFrom = Math.min(others, expiresFrom);
  known.limitCalls += 1;
  const { session } = known;
  call(world, 'setLimits', known, async () => {
    const ref = { accountId: known.accountId, sandboxId: known.id };
    let actor: SandboxActor;
    try {
      actor = agent.parts.registry.find(ref);
      await actor.setLimits({ timeoutSeconds, idleTtlSeconds });
    } finally {
      if (!agent.isDead) known.limitCalls -= 1;
    }
    if (agent.isDead) return;
    world.ledger.see(known, actor.record);
    if (known.limitCalls > 0) return;
    known.idleTtlsSeconds = [actor.row.config.idleTtlSeconds];
    // A session that began meanwhile has its own time.
    if (known.session !== session || actor.row.state !== 'running') return;
    known.usedAt = Math.max(known.usedAt, askedAt);
    if (timeoutSeconds !== undefined) known.expiresFrom = expiresFrom;
  });
}

function exec(world: World, known: Known): void {
  const { random, agent } = world;
  const [id, askedAt] = [randomUUID(), world.time.monotonicMs];
  const path = `/${random.pick(['root', 'run'])}/${id}`;
  const command = random.pick(['exec sleep infinity', `echo ${id} > ${path}`, 'exit 3', 'pwd']);
  const timeoutSeconds = draw(random, [undefined, undefined, 5, 120]);
  const bootId = world.rowOf(known.id)?.bootId ?? '';
  const spec: SandboxExecSpec = {
    id,
    command,
    environment: {},
    hasTerminal: false,
    timeoutSeconds,
  };
  call(world, 'exec', known, async () => {
    const ref = { accountId: known.accountId, sandboxId: known.id };
    const actor = agent.parts.registry.find(ref);
    const { ended } = await actor.exec(spec);
    if (agent.isDead) return;
    known.usedAt = Math.max(known.usedAt, askedAt);
    ended.then(
      async () => {
        const { exec: record } = await actor.readExec(id);
        if (agent.isDead) return;
        // An agent that lets go tells no end.
        if (record.status === 'running') return;
        known.ended.set(id, record);
        if (record.status === 'completed' && command.startsWith('echo')) {
          known.written.push({ path, text: id, bootId });
        }
      },
      () => undefined,
    );
  });
}
