import { routeIdOf } from './ids.ts';

/** Labels of lower-case letters, digits and inner hyphens, without a dot at the end. */
export const zonePattern =
  '^(?=.{1,190}$)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$';

export const ZONE_DEFAULT = 'sbx.localhost';

/** The hostname at which a port of a sandbox is reached. */
export const ingressHostname = (port: number, sandboxId: string, zone: string): string =>
  `${port}-${routeIdOf(sandboxId)}.${zone}`;
