import { AppError, type ErrorCode } from '../../shared/errors.ts';

interface Details {
  readonly headers?: Readonly<Record<string, string>>;
  /** Go into the body, besides `error` and `code`; the route documents them under `failures`. */
  readonly fields?: Readonly<Record<string, unknown>>;
}

/** A failure that tells programs more, such as the file size when a range is not satisfiable. */
export class RefusedRequest extends AppError {
  readonly headers: Readonly<Record<string, string>>;
  readonly fields: Readonly<Record<string, unknown>>;

  constructor(code: ErrorCode, message: string, { headers = {}, fields = {} }: Details) {
    super(code, message);
    this.headers = headers;
    this.fields = fields;
  }
}
