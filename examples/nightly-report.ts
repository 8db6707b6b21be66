/**
 * A nightly report: what is worth reading in the logs of all disks whose name begins with a prefix,
 * found by parallel searches, without a machine. Meant for cron.
 */
import type { Berth, Disk } from '@berth/sdk';

export interface Finding {
  readonly disk: string;
  readonly matches: number;
  readonly examples: readonly string[];
  /** Why the numbers are not all there is, if so. */
  readonly incomplete: string | undefined;
}

const EXAMPLES = 3;

const counted = (matches: number): string => (matches === 1 ? '1 match' : `${matches} matches`);

async function search(disk: Disk, pattern: string): Promise<Finding> {
  const what = { directory: 'logs', pattern, recursive: true, maxResults: 10_000 };
  const { matches, stoppedReason } = await disk.grep(what);
  return {
    disk: disk.name,
    matches: matches.length,
    examples: matches.slice(0, EXAMPLES).map(({ file, line, text }) => `${file}:${line}: ${text}`),
    incomplete: stoppedReason === 'completed' ? undefined : stoppedReason,
  };
}

/** @returns the report as text, disks with the most matches first */
export async function nightlyReport(
  berth: Berth,
  prefix: string,
  pattern = 'ERROR|FATAL',
): Promise<string> {
  const searches: Promise<Finding>[] = [];
  for await (const disk of berth.disks.list()) {
    if (disk.name.startsWith(prefix)) searches.push(search(disk, pattern));
  }
  const findings = (await Promise.all(searches)).filter(
    ({ matches, incomplete }) => matches > 0 || incomplete !== undefined,
  );
  findings.sort((a, b) => b.matches - a.matches);
  return findings
    .flatMap(({ disk, matches, examples, incomplete }) => [
      `${disk}: ${counted(matches)}${incomplete === undefined ? '' : ` (${incomplete})`}`,
      ...examples.map((example) => `  ${example}`),
    ])
    .join('\n');
}
