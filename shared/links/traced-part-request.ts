import { continueInSpan, type NewSpan, type SpanWork } from '../spans.ts';
import type { Claims } from './single-use-token.ts';

/**
 * Does the work of a request that another part of the cluster sent, in a span within the sender's.
 */
export const servePartInSpan = <T>(
  claims: Claims,
  span: NewSpan,
  work: SpanWork<T>,
): Promise<T> => {
  const { traceparent } = claims;
  return continueInSpan(typeof traceparent === 'string' ? traceparent : undefined, span, work);
};
