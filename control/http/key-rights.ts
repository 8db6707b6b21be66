import type { Caller } from '../../shared/directory/api-keys.ts';
import { AppError } from '../../shared/errors.ts';
import { isWithin, type KeyScope } from '../../shared/key-scopes.ts';

/** @throws AppError `insufficient_scope` unless the caller's key may do this */
export function requireScope({ scopes }: Caller, needed: KeyScope): void {
  if (isWithin(needed, scopes)) return;
  const held = scopes.join(', ');
  const hint = needed === 'operator' ? '; the operator makes such keys with scripts/admin' : '';
  throw new AppError(
    'insufficient_scope',
    `this needs an API key with the scope ${needed}; this key has ${held}${hint}`,
  );
}

const mountsAny = (mounts: readonly unknown[] | undefined): boolean =>
  mounts !== undefined && mounts.length > 0;

/** A caller who mounts a disk can change its contents. */
export const mountScope = (body?: { readonly mounts?: readonly unknown[] }): KeyScope | undefined =>
  mountsAny(body?.mounts) ? 'disk' : undefined;

/**
 * The same for the disks that a new sandbox gets from its source, a snapshot or another sandbox.
 * @throws AppError `insufficient_scope`
 */
export function requireMountScope(
  caller: Caller,
  { mounts }: { readonly mounts?: readonly unknown[] | undefined },
): void {
  if (mountsAny(mounts)) requireScope(caller, 'disk');
}
