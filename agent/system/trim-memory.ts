import { MINUTE_MS } from '../../shared/units.ts';
import { native } from '../native/native.ts';
import type { Beat } from './beat.ts';

/**
 * Gives memory that malloc keeps free back to the kernel: that of the start now, and each minute
 * that of the work since then, which lies between blocks that are still in use.
 */
export function keepMemoryTrimmed(beat: Beat): void {
  native.trimMemory();
  beat.every(MINUTE_MS, () => native.trimMemory());
}
