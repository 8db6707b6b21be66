/**
 * Checks this host and says what to do about problems: `scripts/up --check`, and a part of `berth
 * doctor`. Changes nothing. Ends with 1 when something has failed.
 */
import { parseArgs } from 'node:util';
import { type Check, failed, type Finding } from './finding.ts';
import { checkConntrack, checkNamespaces, checkNft, checkSeccomp } from './confinement.ts';
import { checkCgroups, checkClock, checkKernel, checkSpace, checkVersions } from './host.ts';
import { checkKvm } from './kvm.ts';
import { checkLeftovers } from './leftovers.ts';
import { checkAddresses, checkPorts, checkRedis } from './stack.ts';
import { type Env, readEnvFile } from '../env-file.ts';
import { paths } from '../local-paths.ts';

/** The settings of this checkout; elsewhere those of the environment, as services have them. */
async function readConfig(): Promise<Env> {
  const kept = await readEnvFile(paths.config);
  const here = Object.entries(process.env).flatMap(([name, value]) =>
    value === undefined ? [] : [[name, value] as const],
  );
  return { ...Object.fromEntries(here), ...kept };
}

const checksOf = (config: Env): readonly (readonly [string, Check])[] => [
  ['versions', checkVersions],
  ['kernel', checkKernel],
  ['cgroups', checkCgroups],
  ['namespaces', checkNamespaces],
  ['seccomp', checkSeccomp],
  ['nft', checkNft],
  ['conntrack', checkConntrack],
  ['kvm', () => checkKvm(config)],
  ['ports', () => checkPorts(config)],
  ['space', () => checkSpace(config)],
  ['clock', checkClock],
  ['redis', () => checkRedis(config)],
  ['addresses', () => checkAddresses(config)],
  ['leftovers', () => checkLeftovers(config)],
];

/** A check that breaks is a finding, too. */
async function run(name: string, check: Check): Promise<readonly Finding[]> {
  try {
    return await check();
  } catch (error) {
    const message = `could not be checked: ${error instanceof Error ? error.message : String(error)}`;
    return [failed(name, message, 'see whether this runs as root, after ./scripts/setup')];
  }
}

const MARKS = { ok: '✓', warning: '!', failed: '✗' } as const;

const { values } = parseArgs({ options: { json: { type: 'boolean', default: false } } });
const findings: Finding[] = [];
for (const [name, check] of checksOf(await readConfig())) {
  for (const finding of await run(name, check)) {
    findings.push(finding);
    if (values.json) continue;
    const { level, message, next } = finding;
    console.log(`${MARKS[level]} ${name}: ${message}${next === undefined ? '' : `: ${next}`}`);
  }
}
if (values.json) console.log(JSON.stringify({ findings }));
process.exitCode = findings.some(({ level }) => level === 'failed') ? 1 : 0;
