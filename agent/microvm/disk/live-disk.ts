import Type from 'typebox';
import { compile } from '../../../shared/validate.ts';
import { failpoint } from '../../system/failpoint.ts';
import { QEMU_PATH } from '../qemu/qemu-arguments.ts';
import type { QmpClient } from '../qemu/qmp-client.ts';

/** The fields of the answer to `query-block` (QEMU's QMP reference) that are used here. */
const Blocks = Type.Array(
  Type.Object({
    inserted: Type.Optional(
      Type.Object({ 'node-name': Type.String({ pattern: '^[A-Za-z0-9-]{1,31}$' }) }),
    ),
  }),
  { minItems: 1, maxItems: 1 },
);
const parse = compile(Blocks);

/**
 * Makes a stopped machine write to a new, empty layer from now on; QEMU only reads the layers
 * below.
 * @param layer name of the file in the machine's directory of disks
 */
export async function switchLayer(
  monitor: Pick<QmpClient, 'execute'>,
  layer: string,
): Promise<void> {
  const [disk] = parse(await monitor.execute('query-block'), 'query-block');
  const node = disk?.inserted?.['node-name'];
  if (node === undefined) throw new Error('the machine has no disk');
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
