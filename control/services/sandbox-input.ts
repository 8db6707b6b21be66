import { AppError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { CreateSandbox } from '../../shared/schemas/sandbox.ts';

/**
 * The values that fields of unbuilt features may have. A caller who asks for more is refused, because
 * a sandbox without what was asked for would be worse. Remove a field when its feature is built.
 */
const untilBuilt: { readonly [F in keyof CreateSandbox]?: (value: unknown) => boolean } = {
  mounts: isEmptyList,
};

function isEmptyList(value: unknown): boolean {
  return Array.isArray(value) && value.length === 0;
}

/**
 * @param input may have fields that its endpoint's schema does not know, with any value
 * @throws AppError `bad_request` naming the first field that asks for an unbuilt feature
 */
export function refuseUnbuilt(input: object): void {
  for (const [field, isBuilt] of Object.entries(untilBuilt)) {
    const value: unknown = Reflect.get(input, field);
    if (value === undefined || isBuilt(value)) continue;
    throw new AppError('bad_request', `${field}: this is not supported yet`);
  }
}

const BYTES_BESIDE = 2; // The `=` between name and value, and the NUL behind.

/** @throws AppError `bad_request` for names and values that a process's environment cannot hold */
export function checkEnvironment(environment: Readonly<Record<string, string>>): void {
  let bytes = 0;
  for (const [name, value] of Object.entries(environment)) {
    if (name === '' || /[=\0]/u.test(name)) {
      throw new AppError('bad_request', `env: ${JSON.stringify(name)} is not a name`);
    }
    if (value.includes('\0')) {
      throw new AppError('bad_request', `env: the value of ${name} contains a NUL character`);
    }
    bytes += Buffer.byteLength(name) + Buffer.byteLength(value) + BYTES_BESIDE;
  }
  if (bytes > LIMITS.sandboxEnvironmentBytesMax) {
    throw new AppError(
      'bad_request',
      `env is longer than ${LIMITS.sandboxEnvironmentBytesMax} bytes`,
    );
  }
}
