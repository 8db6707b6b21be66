import { AppError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';

const BYTES_BESIDE = 2; // The `=` between name and value, and the NUL after it.

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
