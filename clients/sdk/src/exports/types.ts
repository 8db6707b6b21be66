/**
 * Request and answer bodies, each a schema of the API reference.
 *
 * @module types
 */
export type * from '../types.ts';
