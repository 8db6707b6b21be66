/** What an API key may do (docs/api.md, Scopes). */
export const keyScopes = ['read', 'disk', 'sandbox', 'admin'] as const;
export type KeyScope = (typeof keyScopes)[number];

/** Of keys that were made without any, those of earlier versions among them. */
export const FULL_SCOPES: readonly KeyScope[] = ['admin'];

/** Every key may read, and `admin` may do everything. */
export const isWithin = (needed: KeyScope, held: readonly KeyScope[]): boolean =>
  needed === 'read' || held.includes('admin') || held.includes(needed);
