import { toError } from './errors.ts';
import { isCidr } from './reachable-networks.ts';

const SECRET_LENGTH_MIN = 32;

/** Reads settings from the environment and reports everything that is wrong with them at once. */
export class ConfigReader {
  readonly #environment: Readonly<Record<string, string | undefined>>;
  readonly #problems: string[] = [];

  constructor(environment: Readonly<Record<string, string | undefined>>) {
    this.#environment = environment;
  }

  /** A text, which must match `pattern` if there is one. Required unless there is a fallback. */
  string(name: string, options: { fallback?: string; pattern?: string } = {}): string {
    const value = this.#environment[name] ?? options.fallback;
    if (value === undefined || value === '') {
      this.#problems.push(`${name} is not set`);
      return '';
    }
    if (options.pattern !== undefined && !new RegExp(options.pattern, 'u').test(value)) {
      this.#problems.push(`${name} does not match ${options.pattern}`);
    }
    return value;
  }

  /**
   * An optional setting of a form of its own.
   * @param parse throws an error that says what is expected
   */
  parsed<T>(name: string, parse: (text: string) => T): T | undefined {
    if (!this.has(name)) return undefined;
    try {
      return parse(this.string(name));
    } catch (error) {
      this.#problems.push(`${name}: ${toError(error).message}`);
      return undefined;
    }
  }

  integer(name: string, options: { fallback?: number; min: number; max: number }): number {
    const text = this.#environment[name];
    const value = text === undefined || text === '' ? options.fallback : Number(text);
    if (value === undefined) {
      this.#problems.push(`${name} is not set`);
      return options.min;
    }
    if (!Number.isSafeInteger(value) || value < options.min || value > options.max) {
      this.#problems.push(`${name} must be an integer from ${options.min} to ${options.max}`);
    }
    return value;
  }

  has(name: string): boolean {
    const value = this.#environment[name];
    return value !== undefined && value !== '';
  }

  /** One of `choices`; the first is the fallback. */
  choice<T extends string>(name: string, choices: readonly [T, ...T[]]): T {
    const value = this.#environment[name] ?? choices[0];
    const found = choices.find((choice) => choice === value);
    if (found === undefined) this.#problems.push(`${name} must be one of ${choices.join(', ')}`);
    return found ?? choices[0];
  }

  flag(name: string): boolean {
    const value = this.#environment[name] ?? 'false';
    if (value !== 'true' && value !== 'false') this.#problems.push(`${name} must be true or false`);
    return value === 'true';
  }

  list(name: string, fallback: string): string[] {
    const value = this.#environment[name] ?? fallback;
    return value.split(',').filter((item) => item !== '');
  }

  /** A list, empty by default. @param expected what each item must be, for the message */
  listOf(name: string, isFit: (item: string) => boolean, expected: string): string[] {
    const items = this.list(name, '');
    if (!items.every(isFit)) this.#problems.push(`${name} must be ${expected}`);
    return items;
  }

  /** `key=value` pairs, separated by commas. @param options.values the values that are allowed */
  pairs(
    name: string,
    options: { fallback: string; values: readonly string[] },
  ): [string, string][] {
    const pairs = this.list(name, options.fallback).map((item): [string, string] => {
      const [, key = '', value = ''] = /^([^=]+)=([^=]+)$/u.exec(item) ?? [];
      return [key, value];
    });
    if (pairs.some(([, value]) => !options.values.includes(value))) {
      this.#problems.push(
        `${name} must be pairs <name>=<value> with the values ${options.values.join(', ')}`,
      );
    }
    return pairs;
  }

  /** One to `max` secrets of at least 32 characters each, separated by commas. */
  secrets(name: string, max: number): string[] {
    const values = this.list(name, '');
    const isFit = values.length >= 1 && values.length <= max;
    if (!isFit || values.some((value) => value.length < SECRET_LENGTH_MIN)) {
      this.#problems.push(
        `${name} must be 1 to ${max} secrets of at least ${SECRET_LENGTH_MIN} characters`,
      );
    }
    return values;
  }

  /** A secret of exactly `bytes` bytes in base64. */
  key(name: string, bytes: number): Buffer {
    const value = Buffer.from(this.#environment[name] ?? '', 'base64');
    if (value.length !== bytes) this.#problems.push(`${name} must be ${bytes} bytes in base64`);
    return value;
  }

  /** Adds a problem that the caller found in a setting; {@link finish} throws it with the others. */
  refuse(problem: string): void {
    this.#problems.push(problem);
  }

  /** @throws Error naming every setting that is missing or wrong. */
  finish(): void {
    if (this.#problems.length > 0) throw new Error(`configuration: ${this.#problems.join('; ')}`);
  }
}

/** Settings that control and agent have in common. */
export interface ClusterConfig {
  readonly redisUrl: string;
  /** Agents and control nodes of another cluster are refused. */
  readonly clusterId: string;
  /** Signs the messages between control nodes and agents. */
  readonly clusterSecret: string;
  /** Seals disk tokens; never in Redis. */
  readonly encryptionKey: Buffer;
  /** `<cloud>-<region>`; the part before the first `-` is shown as a disk's `provider`. */
  readonly region: string;
  /** Private networks that object storage behind disks may be of. */
  readonly bucketNetworks: readonly string[];
}

export function readClusterConfig(reader: ConfigReader, regionPattern: string): ClusterConfig {
  return {
    redisUrl: reader.string('REDIS_URL'),
    clusterId: reader.string('CLUSTER_ID', { pattern: '^[A-Za-z0-9-]{3,64}$' }),
    clusterSecret: reader.string('CLUSTER_SECRET', { pattern: '^.{32,}$' }),
    encryptionKey: reader.key('ENCRYPTION_KEY', 32),
    region: reader.string('REGION', { pattern: regionPattern }),
    bucketNetworks: reader.listOf('BUCKET_REACHABLE_NETWORKS', isCidr, 'networks in CIDR form'),
  };
}
