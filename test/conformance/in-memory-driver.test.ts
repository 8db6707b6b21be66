/* The driver that tests and the simulation use does what every driver does. */
import anyTest, { type TestFn } from 'ava';
import { InMemoryMachines } from '../helpers/in-memory-machines.ts';
import { type DriverContext, testLifecycle } from './lifecycle.ts';
import { testMemory } from './memory.ts';
import { testProcessConnections } from './process-connections.ts';

const test = anyTest as TestFn<DriverContext>;
const host = new InMemoryMachines();

test.beforeEach(async (t) => {
  t.context = { host, driver: await host.driver() };
});

test.after.always('no invariant was broken', async (t) => {
  t.deepEqual(host.host.faults, []);
});

testLifecycle(test);
testMemory(test);
testProcessConnections(test);
