import Type from 'typebox';
import { nodeIdPattern } from '../ids.ts';
import { compile } from '../validate.ts';
import type { Claims } from './single-use-token.ts';

/*
 * A control node asks a host that is not linked to it for a link (decision 0102): POST on the
 * host's internal port, with a token (part-requests.ts) that names the node. The answer is 204 once
 * the host is registered there; a failure is told as the data endpoint tells it (data-protocol.ts).
 */

export const LINK_REQUEST_PATH = '/link-request';

const LinkRequest = Type.Object({
  nodeId: Type.String({ pattern: nodeIdPattern }),
  linkUrl: Type.String({ pattern: '^wss?://', maxLength: 2048 }),
});
export type LinkRequest = Type.Static<typeof LinkRequest>;

const check = compile(LinkRequest);

/** Reads the token's claims. @throws AppError `bad_request` when they name no node */
export const readLinkRequest = (claims: Claims): LinkRequest => check(claims, 'link request');
