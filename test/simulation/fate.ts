/* Plays failures of machines, of Redis and of the host. */
import type { World } from './world.ts';

const happenings = {
  processEnds: 30,
  guestShutsDown: 3,
  guestPanics: 1,
  machineKilled: 2,
  guestSilent: 3,
  guestSpeaks: 8,
  redisAway: 2,
  redisBack: 6,
  redisEmptied: 1,
  wallClock: 2,
} as const;

const WALL_CLOCK_STEPS_MS = [-3_600_000, -30_000, -1_000, 1_000, 30_000, 3_600_000];

/** Something happens. */
export async function happen(world: World): Promise<void> {
  const { random, host, redis, time } = world;
  const what = random.weighted(happenings);
  const machines = host.running;
  const vm = machines.length === 0 ? undefined : random.pick(machines);
  const note = (id = ''): void => world.note(what, `${what} ${id}`);
  switch (what) {
    case 'redisAway':
    case 'redisBack':
      world.isRedisAway = what === 'redisAway';
      return note();
    case 'redisEmptied':
      note();
      await time.wait(redis.flushall());
      return;
    case 'wallClock': {
      const ms = random.pick(WALL_CLOCK_STEPS_MS);
      time.setWallClock(Date.now() + ms);
      return note(String(ms));
    }
    default:
  }
  if (vm === undefined) return;
  const { guest, id } = vm;
  if (what === 'machineKilled') vm.stop('killed');
  else if (what === 'guestSilent') guest.isSilent = true;
  else if (what === 'guestSpeaks') guest.isSilent = false;
  else if (guest.isFrozen || guest.isSilent) return; // The command runs nothing now.
  else if (what === 'guestShutsDown') guest.shutDown(false);
  else if (what === 'guestPanics') vm.stop('guest_panic');
  else {
    const process = guest.running.length === 0 ? undefined : random.pick(guest.running);
    if (process !== undefined) guest.end(process, random.integer(0, 3));
  }
  note(id);
}
