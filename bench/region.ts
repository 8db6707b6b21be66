import { writeFile } from 'node:fs/promises';
import { parseArgs } from 'node:util';
import { measureRegion } from './region-measure.ts';
import { printRegions } from './region-print.ts';
import type { RegionFigures } from './region-measure.ts';

const options = {
  agents: { type: 'string', default: '10,30,100' },
  controls: { type: 'string', default: '2' },
  'linked-hosts': { type: 'string', default: '1000' },
  'sandboxes-per-agent': { type: 'string', default: '25' },
  'disks-per-agent': { type: 'string', default: '10' },
  'hosts-per-process': { type: 'string', default: '125' },
  actions: { type: 'string', default: '20' },
  seconds: { type: 'string', default: '10' },
  'redis-cluster': { type: 'boolean', default: false },
  json: { type: 'string' },
} as const;

function count(name: string, text: string): number {
  const value = Number(text);
  if (!Number.isInteger(value) || value < 1) throw new Error(`--${name} must be 1 or more`);
  return value;
}

const note = (what: string): void => void process.stderr.write(`${what}\n`);

/** `npm run bench -- region`: a region of simulated hosts, one size after the other. */
export async function benchRegion(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({ args: [...args], options });
  const plan = {
    controls: count('controls', values.controls),
    linkedHosts: count('linked-hosts', values['linked-hosts']),
    hasRedisCluster: values['redis-cluster'],
    sandboxesPerAgent: count('sandboxes-per-agent', values['sandboxes-per-agent']),
    disksPerAgent: count('disks-per-agent', values['disks-per-agent']),
    hostsPerProcess: count('hosts-per-process', values['hosts-per-process']),
    actionsPerSecond: count('actions', values.actions),
    seconds: count('seconds', values.seconds),
  };
  const sizes = values.agents.split(',').map((text) => count('agents', text));
  const figures: RegionFigures[] = [];
  for (const agents of sizes) {
    figures.push(await measureRegion({ ...plan, agents }, note));
    if (values.json !== undefined) await writeFile(values.json, `${JSON.stringify(figures)}\n`);
  }
  printRegions(figures);
}
