import { S3Error } from '../protocol/errors.ts';

/** The bucket, key and query of an object request, decoded once. */
export interface ObjectTarget {
  /** Empty: the service itself. */
  readonly bucket: string;
  /** Empty: the bucket itself. */
  readonly key: string;
  /** The first value of each parameter; a flag without value is empty text. */
  readonly query: ReadonlyMap<string, string>;
  /** A parameter that is given more than once. */
  readonly repeated?: string;
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch (cause) {
    throw new S3Error('InvalidURI', 'The path or query is not valid UTF-8.', { cause });
  }
}

function readQuery(text: string): Pick<ObjectTarget, 'query' | 'repeated'> {
  const query = new Map<string, string>();
  let repeated: string | undefined;
  for (const pair of text.split('&')) {
    const [name = '', ...value] = pair.replaceAll('+', '%20').split('=');
    const decoded = decode(name);
    if (decoded === '') continue;
    if (query.has(decoded)) repeated = decoded;
    else query.set(decoded, decode(value.join('=')));
  }
  return { query, ...(repeated === undefined ? {} : { repeated }) };
}

/**
 * Splits a request target in path style: `/<bucket>/<key>?<query>`. A `+` in the path is
 * literal.
 * @param target as received
 * @throws S3Error InvalidURI
 */
export function readTarget(target: string): ObjectTarget {
  const mark = target.indexOf('?');
  const path = mark === -1 ? target : target.slice(0, mark);
  if (!path.startsWith('/')) throw new S3Error('InvalidURI');
  const end = path.indexOf('/', 1);
  const [bucket, key] =
    end === -1 ? [path.slice(1), ''] : [path.slice(1, end), path.slice(end + 1)];
  const query = readQuery(mark === -1 ? '' : target.slice(mark + 1));
  return { bucket: decode(bucket), key: decode(key), ...query };
}
