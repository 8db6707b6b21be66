/* Promises of process connections with every driver, besides those of its lifecycle. */
import type { ExecutionContext, TestFn } from 'ava';
import type { Machine } from '../../agent/machines/driver.ts';
import { SandboxProcesses } from '../../agent/sandboxes/processes/sandbox-processes.ts';
import { createLogger } from '../../shared/log.ts';
import { boot } from '../helpers/machines.ts';
import { attachClient, exited, attachableSpec, startProcess } from '../helpers/process-client.ts';
import { waitFor } from '../helpers/wait.ts';
import { type DriverContext, ownSpec } from './lifecycle.ts';

const log = createLogger('test', {});
const never = new AbortController().signal;

function processesOf(t: ExecutionContext<DriverContext>, machine: Machine): SandboxProcesses {
  const processes = new SandboxProcesses({ sandboxId: 'conformance', attachedMax: 10, log });
  processes.connect(machine.guest);
  t.teardown(() => processes.disconnect());
  return processes;
}

export function testProcessConnections(test: TestFn<DriverContext>): void {
  test('a process starts, is reported and ends; its input arrives in order', async (t) => {
    const machine = await boot(t.context.driver, await ownSpec(t));
    const processes = processesOf(t, machine);
    const failed = await startProcess(processes, attachableSpec('echo out; exit 3'));
    t.like(await exited(failed), { status: 'failed', exitCode: 3, cursor: 4 });
    t.is(failed.bytes.toString(), 'out\n');
    const reader = await startProcess(processes, attachableSpec('cat'));
    for (const piece of ['one ', 'two ', 'three']) await reader.process?.write(Buffer.from(piece));
    await reader.process?.closeInput();
    t.like(await exited(reader), { status: 'completed', exitCode: 0, cursor: 13 });
    t.is(reader.bytes.toString(), 'one two three');
  });

  test('a client that attaches at an offset gets the rest while others stay attached', async (t) => {
    const machine = await boot(t.context.driver, await ownSpec(t));
    const processes = processesOf(t, machine);
    const first = await startProcess(processes, attachableSpec('cat'));
    await first.process?.write(Buffer.from('0123456789'));
    await waitFor('the echo', async () => first.cursor === 10);
    const second = await attachClient(processes, first.processId, 4);
    await second.process?.write(Buffer.from('abc'));
    await waitFor('both', async () => first.cursor === 13 && second.cursor === 13);
    t.is(second.bytes.toString(), '456789abc');
    t.is(first.bytes.toString(), '0123456789abc');
    await processes.kill(first.processId);
    for (const client of [first, second]) {
      const exit = { status: 'cancelled', reason: 'process killed', cursor: 13 } as const;
      t.deepEqual(await exited(client), exit);
    }
    const late = await attachClient(processes, first.processId, 0);
    t.is((await exited(late)).status, 'cancelled');
    t.is(late.bytes.toString(), '0123456789abc');
  });

  test('processes and their output outlive the agent', async (t) => {
    const { driver, host } = t.context;
    const spec = await ownSpec(t);
    const machine = await boot(driver, spec);
    const processes = processesOf(t, machine);
    const client = await startProcess(processes, attachableSpec('cat'));
    const ended = await startProcess(processes, attachableSpec('echo done; exit 4'));
    await client.process?.write(Buffer.from('before '));
    await exited(ended);
    await waitFor('the echo', async () => client.cursor === 7);
    processes.disconnect();
    t.true(client.isDetached);
    machine.detach();
    const next = await (await host.driver()).recover(spec);
    if ('reason' in next) return t.fail(next.message);
    const found = processesOf(t, next);
    const again = await attachClient(found, client.processId, 0);
    await again.process?.write(Buffer.from('after'));
    await waitFor('the rest', async () => again.cursor === 12);
    t.is(again.bytes.toString(), 'before after');
    const late = await attachClient(found, ended.processId, 0);
    t.like(await exited(late), { status: 'failed', exitCode: 4, cursor: 5 });
    await next.kill();
  });

  test('processes continue after a pause where they were', async (t) => {
    const { driver } = t.context;
    const spec = await ownSpec(t);
    const machine = await boot(driver, spec);
    const processes = processesOf(t, machine);
    const client = await startProcess(processes, attachableSpec('cat'));
    await client.process?.write(Buffer.from('before '));
    await waitFor('the echo', async () => client.cursor === 7);
    processes.releaseClients();
    t.is(client.exit, undefined);
    await driver.pause(spec.vmId);
    machine.detach();
    processes.disconnect();
    await driver.reclaim(spec.vmId);
    const resumed = await driver.resume(spec, never);
    const again = await attachClient(processesOf(t, resumed), client.processId, 7);
    await again.process?.write(Buffer.from('after'));
    await waitFor('the rest', async () => again.cursor === 12);
    t.is(again.bytes.toString(), 'after');
    await resumed.kill();
  });
}
