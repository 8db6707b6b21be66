import Type from 'typebox';
import { compile } from '../../../../shared/validate.ts';
import { failpoint } from '../../../system/failpoint.ts';
import { QEMU_PATH, ROOT_DISK_ID } from '../process/qemu-arguments.ts';
import type { QmpClient } from '../process/qmp-client.ts';

const parse = compile(Type.String({ pattern: '^[A-Za-z0-9-]{1,31}$' }));

/**
 * The name of the layer that a machine writes to. Asked of the device: the answer to `query-block`
 * repeats for each layer all those below it, a mebibyte for 27 of them.
 */
async function topNodeOf(monitor: Pick<QmpClient, 'execute'>): Promise<string> {
  const property = { path: `/machine/peripheral/${ROOT_DISK_ID}`, property: 'drive' };
  return parse(await monitor.execute('qom-get', property), 'qom-get');
}

/**
 * Makes a stopped machine write to a new, empty layer from now on; QEMU only reads the layers
 * below.
 * @param layer name of the file in the machine's directory of disks
 */
export async function switchLayer(
  monitor: Pick<QmpClient, 'execute'>,
  layer: string,
): Promise<void> {
  const node = await topNodeOf(monitor);
  const overlay = layer.replace(/\.qcow2$/u, '');
  const filename = `${QEMU_PATH.disks}/${layer}`;
  await failpoint('switch layer', async () => {
    await monitor.execute('blockdev-add', {
      driver: 'qcow2',
      'node-name': overlay,
      file: { driver: 'file', filename, discard: 'unmap', 'auto-read-only': false },
      discard: 'unmap',
      backing: null, // blockdev-snapshot sets it.
    });
    await monitor.execute('blockdev-snapshot', { node, overlay });
  });
}
