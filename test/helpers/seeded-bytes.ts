import crypto from 'node:crypto';
import { syncBuiltinESMExports } from 'node:module';
import { Random } from './random.ts';

const { randomBytes, randomUUID } = crypto;

/** Until it is disposed of, ids that this process draws follow from a seed. */
export class SeededBytes implements Disposable {
  constructor(seed: number) {
    const random = new Random(seed, 'bytes');
    const draw = (size: number): Buffer =>
      Buffer.from(Array.from({ length: size }, () => random.integer(0, 255)));
    const drawId = (): ReturnType<typeof randomUUID> => {
      const hex = draw(16).toString('hex');
      return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-a${hex.slice(17, 20)}-${hex.slice(20)}`;
    };
    Object.assign(crypto, { randomBytes: draw, randomUUID: drawId });
    syncBuiltinESMExports();
  }

  [Symbol.dispose](): void {
    Object.assign(crypto, { randomBytes, randomUUID });
    syncBuiltinESMExports();
  }
}
