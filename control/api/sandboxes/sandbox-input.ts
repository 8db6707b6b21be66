import { AppError } from '../../../shared/errors.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';

const BYTES_BESIDE = 2; // The `=` between name and value, and the NUL after it.

/**
 * The hook as a job has it.
 * @throws AppError `bad_request` for text that no shell can be given
 */
export function copyHookOf(hook: string | undefined): { readonly copyHook?: string } {
  if (hook === undefined) return {};
  if (hook.includes('\0')) throw new AppError('bad_request', 'copy_hook contains a NUL character');
  if (Buffer.byteLength(hook) > SCHEMA_LIMITS.copyHookBytesMax) {
    const message = `copy_hook is longer than ${SCHEMA_LIMITS.copyHookBytesMax} bytes`;
    throw new AppError('bad_request', message);
  }
  return { copyHook: hook };
}

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
  if (bytes > SCHEMA_LIMITS.sandboxEnvironmentBytesMax) {
    throw new AppError(
      'bad_request',
      `env is longer than ${SCHEMA_LIMITS.sandboxEnvironmentBytesMax} bytes`,
    );
  }
}
