import { getSystemErrorName } from 'node:util';
import { AppError } from '../../../shared/errors.ts';
import { GUEST_FAILURES } from './guest-protocol.ts';

type GuestFailureCode = keyof typeof GUEST_FAILURES;

/** A machine or its guest ended, is silent, or broke its protocol: no fault of the host. */
export class MachineFault extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'MachineFault';
  }
}

/** The refusal of a call whose guest cannot be reached now, or was lost in the middle of it. */
export const guestSilent = (cause?: unknown): AppError =>
  new AppError('unavailable', 'the sandbox does not answer now; try again', { cause });

/** The guest sent what a sound guest agent cannot have sent; its channel is closed. */
export class GuestProtocolError extends MachineFault {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'GuestProtocolError';
  }
}

/** The channel is closed, or the guest did not answer in time. */
export class GuestUnavailableError extends MachineFault {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'GuestUnavailableError';
  }
}

/**
 * Messages for the sandbox's owner about a process that did not start, by failed step and `errno`.
 */
const IN_WORDS: Readonly<Record<string, string>> = {
  'shell ENOENT': 'its image has no /bin/sh, which runs every command, or not the loader of it',
  'shell EACCES': 'its user may not run /bin/sh, or /bin/sh is not executable',
  'shell ENOEXEC': '/bin/sh of its image is no program for the platform of this host',
  'user ENOENT': 'its image has no such user: /etc/passwd does not list the name',
  'directory ENOENT': 'the directory to run it in is not there',
  'directory ENOTDIR': 'the directory to run it in is none',
  'directory EACCES': 'its user may not enter the directory to run it in',
  'group ENOENT': 'its image has no such group: /etc/group does not list the name',
};

/** The guest refused a request; the channel goes on. */
export class GuestFailure extends Error {
  readonly code: GuestFailureCode;
  /** `ENOENT` …, for `system`. */
  readonly errno: string | undefined;
  /** The step that failed, for `system`: `directory`, `shell`, `root` … */
  readonly step: string;
  /** For the sandbox's owner. */
  readonly reason: string;

  constructor(code: GuestFailureCode, errno: string | undefined, step: string) {
    const refused = `guest refused: ${[code, step, errno].filter(Boolean).join(' ')}`;
    const inWords = code === 'system' ? IN_WORDS[`${step} ${errno}`] : undefined;
    super(inWords === undefined ? refused : `${refused}: ${inWords}`);
    this.name = 'GuestFailure';
    this.code = code;
    this.errno = errno;
    this.step = step;
    this.reason = inWords ?? refused;
  }
}

/** @throws GuestProtocolError when there is no such failure */
export function toGuestFailure(frame: { code: number; errno: number; step: string }): GuestFailure {
  const codes = Object.keys(GUEST_FAILURES) as GuestFailureCode[];
  const code = codes.find((name) => GUEST_FAILURES[name] === frame.code);
  if (code === undefined || frame.errno > 4095) {
    throw new GuestProtocolError('guest failed in a way that there is not');
  }
  return new GuestFailure(
    code,
    frame.errno === 0 ? undefined : getSystemErrorName(-frame.errno),
    frame.step.replaceAll(/[^ -~]/gu, '?').slice(0, 32),
  );
}
