import type { ExecMount, ExecOutcome } from '../../shared/jobs/command-kinds.ts';
import { closeTails, type ContainerExit } from './container.ts';
import { CommandActor, type CommandActorDeps } from './command-actor.ts';
import type { DiskActor } from '../disks/disk-actor.ts';
import { MiB, sizeInWords } from '../../shared/units.ts';
import { SCHEMA_LIMITS } from '../../shared/schemas/limits.ts';

export interface ExecSpec {
  readonly id: string;
  readonly requestId: string;
  readonly accountId: string;
  readonly mounts: readonly ExecMount[];
  readonly command: string;
  /** Milliseconds since the epoch. */
  readonly deadlineAt: number;
}

export interface ExecReport {
  readonly outcome: ExecOutcome;
  readonly output: LargeBody;
}

/** A large answer that is read only when it is sent; close it afterwards. */
export interface LargeBody {
  readonly bytes: number;
  read(): Promise<Buffer[]>;
  close(): Promise<void>;
}

/** Runs a caller's command on disks and reports how it ended. */
export class ExecActor {
  readonly command: CommandActor;
  /** The memory limit of a command, for the note that it ran out of memory. */
  readonly #memoryBytes: number;

  constructor(
    deps: CommandActorDeps & { readonly memoryBytes: number },
    spec: ExecSpec,
    disks: ReadonlyMap<string, DiskActor>,
  ) {
    this.command = new CommandActor(deps, { ...spec, command: () => spec.command }, disks);
    this.#memoryBytes = deps.memoryBytes;
  }

  /** See {@link CommandActor.run}. */
  async run(onBegun: () => void): Promise<ExecReport> {
    return this.#report(await this.command.run(onBegun));
  }

  #report(exit: ContainerExit): ExecReport {
    const notes: string[] = [];
    const { stdout, stderr, outOfMemory } = exit;
    if (stdout.droppedBytes > 0) notes.push(cutNote('stdout', stdout.droppedBytes));
    if (stderr.droppedBytes > 0) notes.push(cutNote('stderr', stderr.droppedBytes));
    if (outOfMemory) {
      const mebibytes = Math.round(this.#memoryBytes / MiB);
      notes.push(`out of memory: the command may use ${mebibytes} MiB; processes were killed`);
    }
    const note = Buffer.from(notes.map((text) => `\nberth: ${text}\n`).join(''));
    return {
      outcome: {
        exitCode: exit.exitCode,
        executeMs: Math.round(exit.endedAt - exit.startedAt),
        endMs: Math.round(performance.now() - exit.endedAt),
      },
      output: {
        bytes: stdout.keptBytes + stderr.keptBytes + note.length,
        read: async () => [await stdout.read(), Buffer.concat([await stderr.read(), note])],
        close: () => closeTails(stdout, stderr),
      },
    };
  }
}

const cutNote = (stream: string, bytes: number): string =>
  `${stream} was cut: its first ${bytes} bytes were dropped, ` +
  `the last ${sizeInWords(SCHEMA_LIMITS.outputBytesPerStreamMax)} are kept`;
