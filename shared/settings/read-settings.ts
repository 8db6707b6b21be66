import type { Static, TObject, TSchema } from 'typebox';
import type { About } from './kinds.ts';

export type SettingTexts = Readonly<Record<string, string | undefined>>;

/** A setting's schema as {@link readSettings} and the documentation see it. */
export interface Setting extends About {
  readonly type?: 'string' | 'integer' | 'boolean' | 'array';
  readonly enum?: readonly string[];
  readonly default?: unknown;
  readonly pattern?: string;
  readonly minimum?: number;
  readonly maximum?: number;
  readonly minItems?: number;
  readonly maxItems?: number;
  readonly uniqueItems?: boolean;
}

/** Says what is wrong with a configuration, all of it at once. Contains no values. */
export class ConfigurationError extends Error {
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(`configuration: ${problems.join('; ')}`);
    this.problems = problems;
  }
}

/** @throws ConfigurationError if there are problems */
export function refuseProblems(problems: readonly string[]): void {
  if (problems.length > 0) throw new ConfigurationError(problems);
}

export const settingsOf = (schema: TObject): [string, Setting][] =>
  Object.entries(schema.properties).map(([name, setting]) => [name, setting as Setting & TSchema]);

class Problem {
  readonly message: string;
  constructor(message: string) {
    this.message = message;
  }
}

/**
 * Reads settings from texts, usually the environment. An empty text counts as none, but for lists,
 * which it makes empty.
 * @throws ConfigurationError naming every setting that is missing or wrong
 */
export function readSettings<T extends TObject>(schema: T, texts: SettingTexts): Static<T> {
  const required = new Set(schema.required as readonly string[] | undefined);
  const values: Record<string, unknown> = {};
  const problems: string[] = [];
  for (const [name, setting] of settingsOf(schema)) {
    const value = readValue(setting, texts[name]);
    if (value instanceof Problem) problems.push(`${name} ${value.message}`);
    else if (value !== undefined) values[name] = value;
    else if (required.has(name)) problems.push(`${name} is not set`);
  }
  refuseProblems(problems);
  return values as Static<T>;
}

/** @returns undefined when there is neither a text nor a default */
function readValue(setting: Setting, text: string | undefined): unknown {
  if (setting.type === 'array') {
    if (text !== undefined) return readList(setting, text);
    return (setting.minItems ?? 0) > 0 ? undefined : setting.default;
  }
  if (text === undefined || text === '') return setting.default;
  if (setting.enum !== undefined) return readChoice(setting.enum, text);
  switch (setting.type) {
    case 'integer': {
      return readInteger(setting, text);
    }
    case 'boolean': {
      return /^(?:true|false)$/u.test(text)
        ? text === 'true'
        : new Problem('must be true or false');
    }
    default: {
      return readText(setting, text);
    }
  }
}

function readInteger({ minimum = 0, maximum = Infinity }: Setting, text: string): unknown {
  const value = Number(text);
  if (Number.isSafeInteger(value) && value >= minimum && value <= maximum) return value;
  return new Problem(`must be an integer from ${minimum} to ${maximum}`);
}

const readChoice = (choices: readonly string[], text: string): unknown =>
  choices.includes(text) ? text : new Problem(`must be one of ${choices.join(', ')}`);

function readText({ pattern, isFit, expected }: Setting, text: string): unknown {
  const isMatch = pattern === undefined || new RegExp(pattern, 'u').test(text);
  if (isMatch && isFit?.(text) !== false) return text;
  return new Problem(expected === undefined ? `does not match ${pattern}` : `must be ${expected}`);
}

function readList(setting: Setting, text: string): unknown {
  const { isFit, expected, minItems = 0, maxItems = Infinity, uniqueItems = false } = setting;
  const items = text.split(',').filter((item) => item !== '');
  const hasLength = items.length >= minItems && items.length <= maxItems;
  const areDistinct = !uniqueItems || new Set(items).size === items.length;
  if (hasLength && areDistinct && items.every((item) => isFit?.(item) !== false)) return items;
  return new Problem(`must be ${expected}`);
}
