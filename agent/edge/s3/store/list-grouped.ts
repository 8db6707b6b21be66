import { EDGE_LIMITS } from '../../limits.ts';
import { groupOfKey } from './keys.ts';
import {
  type ListedEntry,
  type ListRequest,
  nameOf,
  type ObjectPage,
  pageOf,
  walk,
} from './list-objects.ts';

/** Sorts after every key that begins with the text before it: no UTF-8 has this byte. */
const PAST = Buffer.of(0xff);

/**
 * Lists one page with a delimiter other than a slash. Directories do not help then: every key with
 * the prefix is walked over, at most {@link EDGE_LIMITS.keysWalkedPerPageMax} of them for a page,
 * which then ends early.
 */
export async function listGrouped(contents: string, request: ListRequest): Promise<ObjectPage> {
  const { prefix, delimiter, limit, after } = request;
  const group = groupOfKey(after, prefix, delimiter);
  // A common prefix that was listed is passed over; a bound inside of one is not.
  const isListed = group === after && after.startsWith(prefix);
  const start = isListed ? Buffer.concat([Buffer.from(after), PAST]) : Buffer.from(after);
  const entries: ListedEntry[] = [];
  // A directory is read through for each run of names, so a small page must not make the runs
  // short.
  const keys = { ...request, delimiter: undefined, limit: EDGE_LIMITS.keysPerListingMax };
  let walked = 0;
  for await (const entry of walk(contents, keys, start)) {
    if (walked === EDGE_LIMITS.keysWalkedPerPageMax) return pageOf(entries, true);
    walked += 1;
    const common = groupOfKey(nameOf(entry), prefix, delimiter);
    const last = entries.at(-1);
    if (common !== undefined && last !== undefined && nameOf(last) === common) continue;
    if (entries.length === limit) return pageOf(entries, true);
    entries.push(common === undefined ? entry : { prefix: common });
  }
  return pageOf(entries, false);
}
