import { runInBackground } from '../../../shared/background.ts';

/**
 * Does work that bytes of a guest or a server have caused, at once. A failure, thrown or rejected,
 * is reported and ends their connection: thrown in a listener it would end the process, which
 * serves every sandbox of the host.
 * @param task see {@link runInBackground}
 * @param end ends the connection
 */
export const runForConnection = (task: string, end: () => unknown, work: () => unknown): void =>
  runInBackground(task, async () => {
    try {
      await work();
    } catch (error) {
      end();
      throw error;
    }
  });
