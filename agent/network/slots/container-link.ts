import { failpoint } from '../../system/failpoint.ts';
import { ProgramError, run } from '../../system/spawn.ts';
import { CONTAINER_LINK } from './slot-namespace.ts';
import type { SlotPlan } from './slot.ts';

/**
 * Gives a container its end of the slot's link, with address and route. Nobody inside can change
 * them, because containers have no rights over their own network. Idempotent.
 * @param pid a process of the container
 * @throws Error when the container has ended
 */
export async function connectContainer(plan: SlotPlan, pid: number): Promise<void> {
  await failpoint('connect container', async () => {
    await moveLink(plan, pid);
    await within(pid, [
      'link set lo up',
      `address replace ${plan.guestAddress}/${plan.prefixBits} dev ${CONTAINER_LINK}`,
      `link set ${CONTAINER_LINK} up`,
      `route replace default via ${plan.gatewayAddress} dev ${CONTAINER_LINK}`,
    ]);
  });
}

async function moveLink({ namespace }: SlotPlan, pid: number): Promise<void> {
  const move = ['-n', namespace, 'link', 'set', CONTAINER_LINK, 'netns', String(pid)];
  try {
    await run('ip', move);
  } catch (error) {
    const says = (text: string): boolean =>
      error instanceof ProgramError && error.message.includes(text);
    if (says('Cannot find device')) return; // The container has it already.
    if (!says('File exists') && !says('interface with the same name')) throw error;
    // The link of its former slot is there, which the kernel has not removed yet.
    await within(pid, [`link delete ${CONTAINER_LINK}`]).catch((removal: unknown) => {
      // By now it has: before ip(8) looked the name up, or between that and the removal.
      if (!/Cannot find device|No such device/u.test(String(removal))) throw removal;
    });
    await run('ip', move);
  }
}

async function within(pid: number, lines: readonly string[]): Promise<void> {
  const args = [`--net=/proc/${pid}/ns/net`, 'ip', '-batch', '-'];
  await run('nsenter', args, { input: `${lines.join('\n')}\n` });
}
