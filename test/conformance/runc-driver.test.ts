/* The driver of containers does what every driver does, and confines and bounds its containers. */
import anyTest, { type TestFn } from 'ava';
import { RuncMachines } from '../helpers/runc-machines.ts';
import { type DriverContext, testLifecycle } from './lifecycle.ts';
import { testMemory } from './memory.ts';
import { testSessions } from './sessions.ts';

const test = anyTest as TestFn<DriverContext>;

let host: RuncMachines;

test.before(async () => {
  host = await RuncMachines.open();
});

test.beforeEach(async (t) => {
  t.context = { host, driver: await host.driver() };
});

test.after.always(async () => {
  await host[Symbol.asyncDispose]();
});

testLifecycle(test);
testMemory(test);
testSessions(test);
