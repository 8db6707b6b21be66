/** Scopes that an account may give its keys (docs/accounts.md, Keys). */
export const accountScopes = ['read', 'disk', 'sandbox', 'admin'] as const;

/** Scopes of an API key. Only `scripts/admin` gives `operator`: hosts belong to no account. */
export const keyScopes = [...accountScopes, 'operator'] as const;
export type KeyScope = (typeof keyScopes)[number];

/** Scopes of keys that were made without any, those of earlier versions among them. */
export const FULL_SCOPES: readonly KeyScope[] = ['admin'];

/** Every key may read, and `admin` may do everything but what is the operator's. */
export const isWithin = (needed: KeyScope, held: readonly KeyScope[]): boolean =>
  needed === 'read' || held.includes(needed) || (needed !== 'operator' && held.includes('admin'));
