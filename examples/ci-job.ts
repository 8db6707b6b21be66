/**
 * A CI job on a shared disk: the steps run without a machine of their own, one after the other, on
 * a disk that keeps sources and caches between runs. The log is shared by a link.
 */
import type { Berth } from '@berth/sdk';

export interface Step {
  readonly name: string;
  readonly command: string;
}

export interface JobResult {
  /** The step that failed, if one did. */
  readonly failed: string | undefined;
  /** Where anybody can read the log for a day. */
  readonly logUrl: string;
}

/** @param build names the run: the same one, repeated, runs no step twice */
export async function runJob(
  berth: Berth,
  project: string,
  build: string,
  steps: readonly Step[],
): Promise<JobResult> {
  const disk = await berth.disks.create({ name: `ci-${project}` }); // Or the one of the last run.
  let failed: string | undefined;
  for (const { name, command } of steps) {
    // The checkout keeps two jobs of a project from working in one directory at once: the second
    // waits.
    const { exitCode } = await berth.exec(
      {
        disks: { ci: { disk: disk.id, queueMs: 60_000 } },
        command: `cd ci && exec >> 'log-${build}.txt' 2>&1 && echo '== ${name}' && (${command})`,
      },
      { idempotencyKey: `${project}-${build}-${name}` },
    );
    if (exitCode === 0) continue;
    failed = name;
    break;
  }
  const { url } = await disk.share({ key: `log-${build}.txt`, expiresIn: 86_400 });
  return { failed, logUrl: url };
}
