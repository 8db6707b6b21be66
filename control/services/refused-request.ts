import { AppError, type ErrorCode } from '../../shared/errors.ts';

interface Details {
  readonly headers?: Readonly<Record<string, string>>;
  /** Stand in the body, beside `error` and `code`; the route documents them under `failures`. */
  readonly fields?: Readonly<Record<string, unknown>>;
}

/** A failure whose answer says more to programs, such as the size that a range missed. */
export class RefusedRequest extends AppError {
  readonly headers: Readonly<Record<string, string>>;
  readonly fields: Readonly<Record<string, unknown>>;

  constructor(code: ErrorCode, message: string, { headers = {}, fields = {} }: Details) {
    super(code, message);
    this.headers = headers;
    this.fields = fields;
  }
}
