import { hkdfSync } from 'node:crypto';
import Type from 'typebox';
import { parseJson } from './json.ts';
import { randomSecret, seal, sha256, unseal } from './secrets.ts';
import { compile } from './validate.ts';

/*
 * The text that an operator carries from a control node to a new host (docs/decisions/0076). Two
 * values are derived from it. The proof is what the host shows to control. The key seals what the
 * host gets; neither control nor Redis nor the network between them ever has it.
 */

const KEY_BYTES = 32;
const CONTEXT = 'host invitation';

/** The secrets and settings that a joining host gets. */
const JoinBundle = Type.Object(
  {
    settings: Type.Record(Type.String({ pattern: '^[A-Z_]{1,64}$' }), Type.String()),
    /** Texts of certificates (PEM), by the setting that names their file. */
    files: Type.Record(Type.String({ pattern: '^[A-Z_]{1,64}$' }), Type.String()),
  },
  { additionalProperties: false },
);
export type JoinBundle = Type.Static<typeof JoinBundle>;
const checkJoinBundle = compile(JoinBundle);

export const joinTokenPattern = '^join-[A-Za-z0-9_-]{43}$';
/** Form of proofs and nonces: 32 bytes in base64url. */
export const joinProofPattern = '^[A-Za-z0-9_-]{43}$';

export const newJoinToken = (): string => `join-${randomSecret()}`;

const derive = (token: string, purpose: string): Buffer =>
  Buffer.from(hkdfSync('sha256', token, '', `berth join ${purpose}`, KEY_BYTES));

/** The proof that a host shows for the token, once. */
export const proofOf = (token: string): string => derive(token, 'proof').toString('base64url');

/** Under which an invitation is stored: the hash of its proof. */
export const invitationIdOf = (proof: string): string => sha256(proof);

export const sealJoinBundle = (token: string, bundle: JoinBundle): string =>
  seal([derive(token, 'key')], JSON.stringify(bundle), CONTEXT);

/** @throws Error when it was not sealed for this token, or is something else */
export function openJoinBundle(token: string, sealed: string): JoinBundle {
  let text: string;
  try {
    text = unseal([derive(token, 'key')], sealed, CONTEXT);
  } catch (cause) {
    throw new Error('the answer was not made for this token: is the URL that of your cluster?', {
      cause,
    });
  }
  return checkJoinBundle(parseJson(text), 'invitation');
}
