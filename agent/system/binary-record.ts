/** How a field is encoded. Numbers are little-endian. */
type FieldType =
  | 'u8'
  | 'u16'
  | 'u32'
  | 'u64' // At most 2^53 - 1, so that it is exact in JavaScript.
  | 'id' // 16 bytes, written as a UUID.
  | 'ip4'
  | 'text8' // UTF-8 without NUL, preceded by its length in one byte.
  | 'text16'
  | 'bytes16'
  | 'rest';

export type FieldTypes = Readonly<Record<string, FieldType>>;

type ValueOf<T extends FieldType> = T extends 'u8' | 'u16' | 'u32' | 'u64'
  ? number
  : T extends 'bytes16' | 'rest'
    ? Buffer
    : string;

export type RecordOf<Fields extends FieldTypes> = {
  -readonly [K in keyof Fields]: ValueOf<Fields[K]>;
};

const ID_BYTES = 16;
const idPattern = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/u;
const ip4Pattern = /^(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?!$)|$)){4}$/u;
const numberBytes = { u8: 1, u16: 2, u32: 4 } as const;

const asText = (value: unknown): string => {
  if (typeof value !== 'string' || value.includes('\0')) throw new Error('text expected');
  return value;
};

function numberField(bytes: number, value: unknown): Buffer {
  if (typeof value !== 'number' || !Number.isInteger(value)) throw new Error('number expected');
  const field = Buffer.alloc(bytes);
  field.writeUIntLE(value, 0, bytes); // Throws when it does not fit.
  return field;
}

function longField(value: unknown): Buffer {
  if (!Number.isSafeInteger(value) || Number(value) < 0) throw new Error('offset expected');
  const field = Buffer.alloc(8);
  field.writeBigUInt64LE(BigInt(Number(value)));
  return field;
}

const prefixed = (lengthBytes: number, bytes: Buffer): Buffer =>
  Buffer.concat([numberField(lengthBytes, bytes.length), bytes]);

function asBytes(value: unknown): Buffer {
  if (!Buffer.isBuffer(value)) throw new Error('bytes expected');
  return value;
}

function matching(pattern: RegExp, value: unknown): string {
  if (typeof value !== 'string' || !pattern.test(value)) throw new Error('id or address expected');
  return value;
}

function encodeField(type: FieldType, value: unknown): Buffer {
  switch (type) {
    case 'u8':
    case 'u16':
    case 'u32':
      return numberField(numberBytes[type], value);
    case 'u64':
      return longField(value);
    case 'id':
      return Buffer.from(matching(idPattern, value).replaceAll('-', ''), 'hex');
    case 'ip4':
      return Buffer.from(matching(ip4Pattern, value).split('.').map(Number));
    case 'text8':
      return prefixed(1, Buffer.from(asText(value)));
    case 'text16':
      return prefixed(2, Buffer.from(asText(value)));
    case 'bytes16':
      return prefixed(2, asBytes(value));
    case 'rest':
      return asBytes(value);
  }
}

/** @throws Error when a value does not fit its field */
export function encodeRecord<Fields extends FieldTypes>(
  fields: Fields,
  record: RecordOf<Fields>,
): Buffer {
  return Buffer.concat(
    Object.entries(fields).map(([name, type]) => {
      try {
        return encodeField(type, record[name]);
      } catch (error) {
        throw new Error(`field ${name} does not fit`, { cause: error });
      }
    }),
  );
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

function decodeUtf8(bytes: Buffer): string {
  try {
    return utf8.decode(bytes);
  } catch (cause) {
    throw new Error('text is not UTF-8', { cause });
  }
}

/** Takes fields off the front of a buffer, checking each against the bytes that are left. */
class Cursor {
  #left: Buffer;

  constructor(bytes: Buffer) {
    this.#left = bytes;
  }

  get leftBytes(): number {
    return this.#left.length;
  }

  take(length: number): Buffer {
    if (length > this.#left.length) throw new Error('record is cut off');
    const taken = this.#left.subarray(0, length);
    this.#left = this.#left.subarray(length);
    return taken;
  }

  field(type: FieldType): number | string | Buffer {
    switch (type) {
      case 'u8':
      case 'u16':
      case 'u32':
        return this.take(numberBytes[type]).readUIntLE(0, numberBytes[type]);
      case 'u64':
        return this.#long();
      case 'id':
        return this.take(ID_BYTES)
          .toString('hex')
          .replace(/^(.{8})(.{4})(.{4})(.{4})/u, '$1-$2-$3-$4-');
      case 'ip4':
        return [...this.take(4)].join('.');
      case 'text8':
        return asText(decodeUtf8(this.take(this.take(1).readUInt8())));
      case 'text16':
        return asText(decodeUtf8(this.take(this.take(2).readUInt16LE())));
      case 'bytes16':
        return this.take(this.take(2).readUInt16LE());
      case 'rest':
        return this.take(this.#left.length);
    }
  }

  #long(): number {
    const value = Number(this.take(8).readBigUInt64LE());
    if (!Number.isSafeInteger(value)) throw new Error('offset is out of range');
    return value;
  }
}

/** @throws Error when the bytes are not exactly one record of these fields */
export function decodeRecord<Fields extends FieldTypes>(
  fields: Fields,
  bytes: Buffer,
): RecordOf<Fields> {
  const cursor = new Cursor(bytes);
  const entries = Object.entries(fields).map(([name, type]) => [name, cursor.field(type)] as const);
  if (cursor.leftBytes > 0) throw new Error('record is too long');
  return Object.fromEntries(entries) as RecordOf<Fields>;
}
