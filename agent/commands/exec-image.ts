import { join } from 'node:path';
import Type from 'typebox';
import { toError } from '../../shared/errors.ts';
import { newJobId } from '../../shared/ids.ts';
import { parseImageReference } from '../../shared/image-reference.ts';
import type { Logger } from '../../shared/log.ts';
import { compile } from '../../shared/validate.ts';
import { closeTails, Container, type ContainerHost } from './container.ts';
import type { HeldImage } from '../images/built-image.ts';
import { HOST_ACCOUNT, type ImageBringer, ImageFailure } from '../images/image-source.ts';
import { writeDurably } from '../system/write-durably.ts';
import { readRecord } from '../system/read-record.ts';

/* The image of the containers that commands on disks run in (the setting EXEC_IMAGE). */

/** In the agent's data directory: which image the reference meant last. */
const NAME = 'exec-image.json';
const checkLast = compile(Type.Object({ reference: Type.String(), digest: Type.String() }));

interface ExecImageParts {
  readonly builder: ImageBringer;
  readonly dataDir: string;
  readonly log: Logger;
}

/**
 * Brings the image that a reference names. A tag is looked up at each start of the agent; when the
 * registry does not answer, the image of the last start is used.
 * @param reference normalised
 * @returns held for as long as the agent runs
 * @throws Error that names the setting
 */
export async function bringExecImage(reference: string, parts: ExecImageParts): Promise<HeldImage> {
  const { digest } = parseImageReference(reference);
  try {
    const held = await bring(reference, digest, parts);
    const last = JSON.stringify({ reference, digest: held.image.digest });
    await writeDurably(parts.dataDir, NAME, last);
    return held;
  } catch (error) {
    const former = await bringLast(reference, parts, toError(error));
    if (former !== undefined) return former;
    const message = `EXEC_IMAGE ${reference} cannot be used: ${toError(error).message}`;
    throw new Error(message, { cause: error });
  }
}

/**
 * Runs a command in a container of the image, as commands on disks will be.
 * @throws Error that names the setting, when the image has no bash or cannot run it
 */
export async function checkExecImage(reference: string, host: ContainerHost): Promise<void> {
  const container = new Container(host, newJobId());
  try {
    await container.start();
    const { exitCode, stdout, stderr } = await container.run(() => 'true', []);
    const text = (await stderr.read()).toString().trim();
    await closeTails(stdout, stderr);
    if (exitCode === 0) return;
    const why = text === '' ? `it ended with ${exitCode}` : text;
    throw new Error(`commands run in bash, and the image has none that runs here: ${why}`);
  } catch (error) {
    const message = `EXEC_IMAGE ${reference} cannot be used: ${toError(error).message}`;
    throw new Error(message, { cause: error });
  } finally {
    await container.kill();
    await container.gone;
  }
}

const bring = (
  reference: string,
  digest: string | undefined,
  { builder }: ExecImageParts,
): Promise<HeldImage> =>
  builder.bring({ reference, digest }, { accountId: HOST_ACCOUNT, tree: true });

/** @returns undefined when the image is wrong for good, or there was no former one */
async function bringLast(
  reference: string,
  parts: ExecImageParts,
  err: Error,
): Promise<HeldImage | undefined> {
  if (err instanceof ImageFailure && err.reason === 'invalid_source') return undefined;
  const last = await readRecord(join(parts.dataDir, NAME), checkLast);
  if (last?.reference !== reference) return undefined;
  const held = await bring(reference, last.digest, parts).catch(() => undefined);
  if (held !== undefined) parts.log.warn({ ...last, err }, 'execImage:notRenewed');
  return held;
}
