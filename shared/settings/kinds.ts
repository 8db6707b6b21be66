import Type from 'typebox';
import { LIMITS } from '../limits.ts';

/*
 * Settings are described once, as TypeBox schemas: `readSettings` reads an environment by them, the
 * types of the configuration come from them, and scripts/describe-settings.ts describes them in
 * docs/settings.md. A setting without a default is required unless it is wrapped in
 * `Type.Optional`.
 */

/** Keywords of a setting besides those of JSON Schema. */
export interface About {
  /** For the table of the documentation, in Markdown. */
  readonly description: string;
  /** For the table: the default of an optional setting, which the process finds out by itself. */
  readonly fallback?: string;
  /** For the table: the value that set-up writes. */
  readonly setUp?: string;
  /** For the table: the form of a text, where bounds or choices do not say it. */
  readonly form?: string;
  /** Checks a text, or each item of a list. */
  readonly isFit?: (text: string) => boolean;
  /** The expected form of a value, for the error message. */
  readonly expected?: string;
  readonly unit?: 'bytes' | 'ms' | 'MiB' | 'days' | 'bytes/s';
}

type TextAbout = About & { readonly pattern?: string; readonly default?: string };

export const text = (about: TextAbout) => Type.String({ ...about });

export const absolutePath = (about: TextAbout) =>
  Type.String({ pattern: String.raw`^/[^\0]*$`, form: 'absolute path', ...about });

type IntegerAbout = About & {
  readonly minimum: number;
  readonly maximum: number;
  readonly default?: number;
};

export const integer = (about: IntegerAbout) => Type.Integer({ ...about });

export const port = (about: About & { readonly default?: number }) =>
  Type.Integer({ minimum: 1, maximum: 65_535, form: 'port', ...about });

/** `true` or `false`; `false` by default. */
export const flag = (about: About) => Type.Boolean({ default: false, ...about });

type ListAbout = About & {
  readonly default?: readonly string[];
  readonly minItems?: number;
  readonly maxItems?: number;
};

type RingAbout = Omit<About, 'form' | 'expected' | 'isFit'> & {
  /** The form of each secret, as in `32 bytes in base64`. */
  readonly each: string;
  readonly isFit: (secret: string) => boolean;
};

const SECRET_LENGTH_MIN = 32;

/** A secret of which only the length counts. */
export const anySecret = {
  each: `at least ${SECRET_LENGTH_MIN} characters`,
  isFit: (secret: string): boolean => secret.length >= SECRET_LENGTH_MIN,
};

/** Secrets separated by commas, of which the first seals and signs, and each opens and verifies. */
export const ring = ({ each, ...about }: RingAbout) => {
  const form = `1 to ${LIMITS.secretsOfRingMax} secrets, each ${each}`;
  const bounds = { minItems: 1, maxItems: LIMITS.secretsOfRingMax, uniqueItems: true };
  return Type.Array(Type.String(), { ...bounds, form, expected: `${form}, none twice`, ...about });
};

/** Items separated by commas; empty ones do not count. None by default. */
export const list = (about: ListAbout) => Type.Array(Type.String(), { default: [], ...about });
