import { randomUUID } from 'node:crypto';

/*
 * The text that a host writes to its file on the storage to show that it is alive: another one each
 * time. All are of one length, since each is written over the former one.
 */

/** Begins the signs of a host each of whose machines has a link to its base; no UUID begins so. */
const LINKED = 'linked--';

/** @param hasLinks whether each machine of the host has its own link to the image below its disk */
export const newSign = (hasLinks: boolean): string => {
  const text = randomUUID();
  return hasLinks ? `${LINKED}${text.slice(LINKED.length)}` : text;
};

/** Whether the agent that wrote it, a former version's perhaps, gives each machine its link. */
export const tellsOfLinks = (sign: string | undefined): boolean =>
  sign?.startsWith(LINKED) === true;
