import type { Target } from './target.ts';
import { frameTargets } from './targets/frames.ts';
import { httpTargets } from './targets/http.ts';
import { objectRequestTargets } from './targets/object-requests.ts';
import { storeTargets } from './targets/stores.ts';

/** The targets that need only this process. */
export const inProcessTargets: readonly Target[] = [
  ...objectRequestTargets,
  ...frameTargets,
  ...storeTargets,
];

export const targets: readonly Target[] = [...inProcessTargets, ...httpTargets];
