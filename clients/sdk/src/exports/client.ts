/**
 * The client itself, options of every call, lists, images and API keys.
 *
 * @module client
 */
export { ApiKeys } from '../api-keys.ts';
export { Berth } from '../berth.ts';
export type { BerthOptions, CallOptions, CreatingCallOptions } from '../http.ts';
export { Image, Images } from '../image.ts';
export { type Page, Pages } from '../pages.ts';
export type {
  AnswerBody,
  Fetch,
  FetchAnswer,
  FetchInit,
  Socket,
  SocketClass,
} from '../transport.ts';
export type { WaitOptions } from '../waiting.ts';
