import type { Target } from './target.ts';
import { egressTargets } from './targets/egress.ts';
import { frameTargets } from './targets/frames.ts';
import { httpTargets } from './targets/http.ts';
import { headerTargets } from './targets/header-bytes.ts';
import { objectRequestTargets } from './targets/object-requests.ts';
import { storeTargets } from './targets/stores.ts';

/** The targets that need only this process. */
export const inProcessTargets: readonly Target[] = [
  ...objectRequestTargets,
  ...headerTargets,
  ...frameTargets,
  ...storeTargets,
  ...egressTargets,
];

export const targets: readonly Target[] = [...inProcessTargets, ...httpTargets];
