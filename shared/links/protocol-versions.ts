import Type from 'typebox';

/*
 * Which control nodes and agents work together (docs/decisions/0083). The version counts what both
 * ends must know: frames, jobs, and requests between parts. It rises when one end would have to
 * do something that the other cannot read; optional fields and new kinds of jobs need no new
 * version.
 */

/** The versions that a part speaks, from its oldest to its newest. */
export const ProtocolVersions = Type.Object({
  oldest: Type.Integer({ minimum: 1 }),
  newest: Type.Integer({ minimum: 1 }),
});
export type ProtocolVersions = Type.Static<typeof ProtocolVersions>;

export const OWN_VERSIONS: ProtocolVersions = { oldest: 1, newest: 1 };
/** The versions of parts that send none. */
const FIRST: ProtocolVersions = { oldest: 1, newest: 1 };

const describe = ({ oldest, newest }: ProtocolVersions): string =>
  oldest === newest ? `version ${newest}` : `versions ${oldest} to ${newest}`;

/** @throws Error when the other part speaks no version that this one does */
export function assertCompatible(other: ProtocolVersions = FIRST, own = OWN_VERSIONS): void {
  if (other.oldest <= own.newest && own.oldest <= other.newest) return;
  const older = other.newest < own.oldest ? 'the other side' : 'this node';
  const [theirs, ours] = [describe(other), describe(own)];
  throw new Error(`the other side speaks ${theirs}, this node ${ours}: upgrade ${older}`);
}
