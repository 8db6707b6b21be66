import { readFile } from 'node:fs/promises';
import { join } from 'node:path';

/** The configuration of a proxy in docs/proxies.md, for machines with few descriptors. */
export async function documentedProxy(name: string): Promise<string> {
  const text = await readFile(join(import.meta.dirname, '../../docs/proxies.md'), 'utf8');
  const block = text.split(`<!-- tried: ${name} -->`)[1]?.split('```')[1] ?? '';
  return block.slice(name.length).replace('maxconn 20000', 'maxconn 2000');
}

/** The documented haproxy in front of control nodes that speak TLS, too. */
export async function clusterProxy(place: {
  readonly address: string;
  readonly controls: readonly string[];
  /** The directory of its certificate and of everything else in /etc/haproxy. */
  readonly directory: string;
  readonly ca: string;
}): Promise<string> {
  const text = place.controls.reduce(
    (all, address, index) => all.replace(`10.0.0.${index + 1}:8700`, `${address}:8700`),
    await documentedProxy('haproxy'),
  );
  return text
    .replace('bind :443', `bind ${place.address}:443`)
    .replaceAll(/^(\s*server .*)$/gmu, `$1 ssl verify required ca-file ${place.ca}`)
    .replaceAll('/etc/haproxy/', `${place.directory}/`)
    .replaceAll(/^.* 10\.0\.0\.\d:.*\n/gmu, '');
}
