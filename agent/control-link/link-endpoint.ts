import type { ServerResponse } from 'node:http';
import { readLinkRequest } from '../../shared/links/link-request.ts';
import type { Claims } from '../../shared/links/single-use-token.ts';
import { answerFailure } from '../system/answer-failure.ts';
import type { ControlLinks } from './control-link.ts';

/**
 * Links this host to the control node that asks for it (`shared/links/link-request.ts`). Answers
 * once it is registered there.
 */
export async function answerLinkRequest(
  links: Pick<ControlLinks, 'open'>,
  response: ServerResponse,
  claims: Claims,
): Promise<void> {
  try {
    await links.open(readLinkRequest(claims));
    response.writeHead(204).end();
  } catch (thrown) {
    answerFailure(response, thrown);
  }
}
