/**
 * Errors that the client throws.
 *
 * @module errors
 */
export {
  ApiError,
  type ApiFailure,
  BadRequestError,
  BerthError,
  CallTimeoutError,
  ConflictError,
  ConnectionError,
  DeadlineError,
  ForbiddenError,
  NotFoundError,
  OutcomeUnknownError,
  OutputLostError,
  PreconditionError,
  ProcessLostError,
  RateLimitError,
  ServerError,
  SessionError,
  TooLargeError,
  UnauthorizedError,
  UnavailableError,
  WatchEndedError,
} from '../errors.ts';
