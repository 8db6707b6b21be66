import type { IncomingMessage, ServerResponse } from 'node:http';
import { AppError } from '../../../shared/errors.ts';
import { FairShares, type Permit } from '../../../shared/fair-shares.ts';
import { lingerAfterAnswer } from '../../../shared/http/early-answer.ts';
import { newRequestId } from '../../../shared/ids.ts';
import { EDGE_LIMITS } from '../limits.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import {
  type FileOperation,
  type FilesAnswer,
  type FilesRequest,
  readFilesRequest,
} from '../../../shared/links/files-protocol.ts';
import type { Claims } from '../../../shared/links/single-use-token.ts';
import { servePartInSpan } from '../../../shared/links/traced-part-request.ts';
import type { Logger } from '../../../shared/log.ts';
import type { SandboxActor } from '../../sandboxes/lifecycle/sandbox-actor.ts';
import type { SandboxFiles } from '../../sandboxes/files/sandbox-files.ts';
import { RequestsUnderWay } from '../../system/queues/requests-under-way.ts';
import { answerFailure } from '../../system/answer-failure.ts';
import { joinPath, presentFile } from './present-file.ts';
import { receiveFile } from './receive-file.ts';
import { sendEvents } from './send-events.ts';
import { sendFile } from './send-file.ts';
import { readList, readResult, readStat, readTarget } from './worker-answers.ts';

export interface FilesEndpointOptions {
  /** @throws AppError `not_found` */
  readonly find: (ref: { accountId: string; sandboxId: string }) => SandboxActor;
  readonly log: Logger;
}

const pathOf = (encoded: string): Buffer => Buffer.from(encoded, 'base64url');

async function list(files: SandboxFiles, operation: FileOperation): Promise<FilesAnswer> {
  const limit = operation.limit ?? SCHEMA_LIMITS.fileListDefault;
  await using worker = await files.begin({ ...operation, limit });
  await readResult(worker);
  const { entries, isCut } = await readList(worker, limit);
  const last = entries.at(-1);
  const directory = pathOf(operation.path);
  return {
    entries: entries.map(({ path, stat, target }) =>
      presentFile(joinPath(directory, path), stat, target),
    ),
    ...(isCut && last !== undefined ? { next: last.path.toString('base64url') } : {}),
  };
}

/** Carries out an operation that has no content and is answered by JSON. */
async function carryOut(files: SandboxFiles, operation: FileOperation): Promise<FilesAnswer> {
  if (operation.type === 'list') return list(files, operation);
  await using worker = await files.begin(operation);
  if (operation.type === 'remove') await worker.ready(); // Removing a tree has no time limit.
  await readResult(worker);
  const path = pathOf(operation.to ?? operation.path);
  switch (operation.type) {
    case 'stat': {
      const stat = await readStat(worker);
      return { file: presentFile(path, stat, await readTarget(worker)) };
    }
    case 'makeDirectory': {
      const isNew = (await worker.takeNumber(1)) !== 0;
      return { file: presentFile(path, await readStat(worker)), isNew };
    }
    case 'move': {
      return { file: presentFile(path, await readStat(worker)) };
    }
    default: {
      return {};
    }
  }
}

const SPAN = { name: 'sandbox files', kind: 'server' } as const;

/**
 * Serves the files of this host's sandboxes to control nodes; see shared/links/files-protocol.ts.
 */
export class FilesEndpoint {
  readonly #options: FilesEndpointOptions;
  readonly #underWay = new RequestsUnderWay();
  readonly #transfers = new FairShares(EDGE_LIMITS.filesPerHostMax);
  readonly #watches = new FairShares(EDGE_LIMITS.watchesPerHostMax);
  readonly #closing = new AbortController();

  constructor(options: FilesEndpointOptions) {
    this.#options = options;
  }

  /**
   * Never throws: a failure is answered, or the connection is broken off.
   * @param claims from the token of the control node that asks
   */
  handle(request: IncomingMessage, response: ServerResponse, claims: Claims): void {
    const answer = (): Promise<void> => this.#answer(request, response, claims);
    this.#underWay.add(servePartInSpan(claims, SPAN, answer));
  }

  /** Refuses new requests and ends watches; settles when the others have ended. */
  async drain(): Promise<void> {
    this.#closing.abort(new AppError('unavailable', 'the host is shutting down; try again'));
    await this.#underWay.ended();
  }

  async #answer(request: IncomingMessage, response: ServerResponse, claims: Claims): Promise<void> {
    const { log } = this.#options;
    const requestId = request.headers['x-request-id']?.toString() ?? newRequestId();
    const notes: Record<string, unknown> = { requestId };
    try {
      const wanted = readFilesRequest(claims);
      const { sandboxId, operation } = wanted;
      Object.assign(notes, { sandboxId, operation: operation.type });
      this.#closing.signal.throwIfAborted();
      using _permit = this.#takePermit(wanted);
      const { files } = await this.#options.find(wanted).connect();
      await this.#carryOut(files, operation, request, response);
      notes['completed'] = true;
    } catch (thrown) {
      if (!response.headersSent && !request.complete) lingerAfterAnswer(request, response);
      Object.assign(notes, { completed: false }, answerFailure(response, thrown));
    }
    log.info({ ...notes, status: response.statusCode }, 'files:answered');
  }

  async #carryOut(
    files: SandboxFiles,
    operation: FileOperation,
    request: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    const { type } = operation;
    if (type === 'read' || type === 'watch') {
      await using worker = await files.begin(operation);
      const gone = new AppError('cancelled', 'the caller is gone');
      response.once('close', () => worker.fail(gone));
      if (type === 'read') return await sendFile(worker, request, response);
      const { signal } = this.#closing;
      return await sendEvents(worker, pathOf(operation.path), response, signal);
    }
    const answer =
      type === 'write'
        ? await receiveFile(files, operation, request)
        : await carryOut(files, operation);
    const body = Buffer.from(JSON.stringify(answer));
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': body.length });
    response.end(body);
  }

  /** @throws AppError `no_capacity`, `rate_limited` */
  #takePermit({ accountId, sandboxId, operation }: FilesRequest): Permit {
    const permits = operation.type === 'watch' ? this.#watches : this.#transfers;
    const permit = permits.take([`account ${accountId}`, `sandbox ${sandboxId}`]);
    if (permit !== undefined) return permit;
    if (permits.isFull) {
      throw new AppError('no_capacity', 'the host serves too many files now; try again');
    }
    throw new AppError('rate_limited', 'the account reads or writes too many files; try again');
  }
}
