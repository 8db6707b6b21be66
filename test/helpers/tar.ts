const BLOCK = 512;

/** An entry of a layer. Nothing is checked, since hostile layers are made of these, too. */
export interface TarEntry {
  readonly name: string;
  readonly type?: 'file' | 'link' | 'symlink' | 'char' | 'block' | 'directory' | 'fifo';
  readonly mode?: number;
  readonly uid?: number;
  readonly gid?: number;
  readonly content?: Buffer | string;
  readonly target?: string;
  readonly device?: readonly [major: number, minor: number];
  readonly xattrs?: Readonly<Record<string, string>>;
}

const TYPES = {
  file: '0',
  link: '1',
  symlink: '2',
  char: '3',
  block: '4',
  directory: '5',
  fifo: '6',
};
const MODIFIED_AT = 1_700_000_000;

const octal = (value: number, length: number): string =>
  `${value.toString(8).padStart(length - 1, '0')}\0`;

const padded = (content: Buffer): Buffer =>
  Buffer.concat([content, Buffer.alloc((BLOCK - (content.length % BLOCK)) % BLOCK)]);

function header(name: string, type: string, size: number, entry: TarEntry): Buffer {
  const block = Buffer.alloc(BLOCK);
  const write = (text: string, at: number): void => {
    block.write(text, at, 'latin1');
  };
  block.write(name, 0, 100, 'utf8');
  write(octal(entry.mode ?? (entry.type === 'directory' ? 0o755 : 0o644), 8), 100);
  write(octal(entry.uid ?? 0, 8), 108);
  write(octal(entry.gid ?? 0, 8), 116);
  write(octal(size, 12), 124);
  write(octal(MODIFIED_AT, 12), 136);
  write(' '.repeat(8), 148);
  write(type, 156);
  block.write(entry.target ?? '', 157, 100, 'utf8');
  write('ustar\x0000', 257);
  write(octal(entry.device?.[0] ?? 0, 8), 329);
  write(octal(entry.device?.[1] ?? 0, 8), 337);
  const sum = block.reduce((total, byte) => total + byte, 0);
  write(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
  return block;
}

/** A record of an extended header: its length includes the digits of the length. */
function record(key: string, value: string): string {
  const rest = ` ${key}=${value}\n`;
  let length = Buffer.byteLength(rest);
  while (length !== Buffer.byteLength(rest) + String(length).length) {
    length = Buffer.byteLength(rest) + String(length).length;
  }
  return `${length}${rest}`;
}

function extended(entry: TarEntry): Buffer[] {
  const records = Object.entries(entry.xattrs ?? {}).map(([name, value]) =>
    record(`SCHILY.xattr.${name}`, value),
  );
  if (Buffer.byteLength(entry.name) > 100) records.push(record('path', entry.name));
  if (records.length === 0) return [];
  const content = Buffer.from(records.join(''));
  return [header('pax', 'x', content.length, { name: 'pax' }), padded(content)];
}

/** The bytes of an archive. */
export function tar(entries: readonly TarEntry[]): Buffer {
  const blocks = entries.flatMap((entry) => {
    const content = Buffer.from(entry.content ?? '');
    const type = TYPES[entry.type ?? 'file'];
    return [
      ...extended(entry),
      header(
        entry.name,
        type,
        entry.type === undefined || entry.type === 'file' ? content.length : 0,
        entry,
      ),
      padded(content),
    ];
  });
  return Buffer.concat([...blocks, Buffer.alloc(2 * BLOCK)]);
}
