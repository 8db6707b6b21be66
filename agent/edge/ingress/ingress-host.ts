/** A hostname of the ingress, taken apart. */
export interface IngressHost {
  readonly port: number;
  readonly routeId: string;
}

const LABEL = /^([1-9][0-9]{0,4})-([0-9a-f]{32})$/u;
const PORT_MAX = 65_535;

/**
 * Reads the Host header of a request.
 * @param zone in lower case
 * @returns undefined unless it names a port of a sandbox in the zone, whether there is one or not
 */
export function parseIngressHost(header: string, zone: string): IngressHost | undefined {
  const host = header
    .toLowerCase()
    .replace(/:[0-9]{1,5}$/u, '')
    .replace(/\.$/u, '');
  const label = host.slice(0, -zone.length - 1);
  if (host !== `${label}.${zone}`) return undefined;
  const [, port = '', routeId] = LABEL.exec(label) ?? [];
  if (routeId === undefined || Number(port) > PORT_MAX) return undefined;
  return { port: Number(port), routeId };
}
