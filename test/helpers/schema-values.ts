/*
 * Values that a JSON Schema allows and values that it forbids, made from the schema alone: each
 * bound, each optional field, each wrong type, each missing field.
 */
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js';
import formats from 'ajv-formats';
import * as fc from './fast-check.ts';
import { isFull } from './full.ts';

export interface JsonSchema {
  readonly $ref?: string;
  readonly type?: string | readonly string[];
  readonly const?: unknown;
  readonly enum?: readonly unknown[];
  readonly examples?: readonly unknown[];
  readonly pattern?: string;
  readonly minLength?: number;
  readonly maxLength?: number;
  readonly minimum?: number;
  readonly maximum?: number;
  readonly items?: JsonSchema;
  readonly minItems?: number;
  readonly maxItems?: number;
  readonly properties?: Readonly<Record<string, JsonSchema>>;
  readonly required?: readonly string[];
  readonly additionalProperties?: JsonSchema | boolean;
  readonly propertyNames?: JsonSchema;
  readonly minProperties?: number;
  readonly maxProperties?: number;
  readonly oneOf?: readonly JsonSchema[];
  readonly anyOf?: readonly JsonSchema[];
}

/** A value, and what of it the schema allows or forbids. */
export interface Sample {
  readonly value: unknown;
  readonly why: string;
}

export interface Samples {
  readonly valid: readonly Sample[];
  readonly invalid: readonly Sample[];
}

/** Valid values of fields whose schema cannot say which ones exist, by the name of the field. */
export type KnownValues = Readonly<Record<string, readonly unknown[]>>;

type Fields = Record<string, unknown>;

const OF_EACH_TYPE: Readonly<Record<string, unknown>> = {
  null: null,
  boolean: true,
  integer: 7,
  number: 1.5,
  string: 'text',
  array: [],
  object: {},
};
/** How many texts of a pattern stand for all of them. */
const TEXTS = isFull ? 6 : 2;
const WRONG_TEXTS = isFull ? Number.POSITIVE_INFINITY : 3;
const UNKNOWN_FIELD = 'noSuchField';
const BAD_TEXTS = ['', '\0', ' ', '/', '..', 'é', 'x y', '=', 'a\nb', '\u{1f600}', 'UPPER_-.'];
/** Beyond this, a text that is as long as it may be says nothing more. */
const LONG_TEXT = 2 ** 20;

const within = (samples: readonly Sample[], change: (value: unknown) => unknown, where: string) =>
  samples.map(({ value, why }) => ({ value: change(value), why: `${where}: ${why}` }));

/** Where the group that begins at an index of a pattern's source ends. */
function endOfGroup(source: string, start: number): number {
  let depth = 0;
  let isInClass = false;
  for (let at = start; at < source.length; at += 1) {
    const character = source[at];
    if (character === '\\') at += 1;
    else if (isInClass) isInClass = character !== ']';
    else if (character === '[') isInClass = true;
    else if (character === '(') depth += 1;
    else if (character === ')') depth -= 1;
    if (depth === 0) return at + 1;
  }
  return source.length;
}

/**
 * Lookaheads are no part of what texts are made of; whatever they forbid is left out afterwards.
 */
function textsOf(pattern: string): fc.Arbitrary<string> {
  let source = pattern;
  for (let start = source.search(/\(\?[!=]/u); start >= 0; start = source.search(/\(\?[!=]/u)) {
    source = source.slice(0, start) + source.slice(endOfGroup(source, start));
  }
  return fc.stringMatching(new RegExp(source, 'u'), { size: 'xsmall' });
}

/** The schemas of a document, each compiled once. */
export class SchemaDocument {
  readonly #ajv = new Ajv2020({
    ...{ strict: false, discriminator: true, meta: false, validateSchema: false },
    code: { optimize: false },
  });
  readonly #document: object;
  readonly #validators = new Map<string, ValidateFunction>();
  readonly #texts = new Map<JsonSchema, string>();

  constructor(document: object) {
    formats.default(this.#ajv);
    this.#ajv.addSchema(document, 'document');
    this.#document = document;
  }

  isValid(schema: JsonSchema, value: unknown): boolean {
    let text = this.#texts.get(schema);
    if (text === undefined) {
      text = JSON.stringify(schema).replaceAll('"#/', '"document#/');
      this.#texts.set(schema, text);
    }
    let validate = this.#validators.get(text);
    if (validate === undefined) {
      validate = this.#ajv.compile(JSON.parse(text) as object);
      this.#validators.set(text, validate);
    }
    return validate(value);
  }

  /** The schema that a reference leads to. */
  resolve(schema: JsonSchema): JsonSchema {
    if (schema.$ref === undefined) return schema;
    let target: unknown = this.#document;
    for (const part of schema.$ref.slice(2).split('/')) target = Reflect.get(Object(target), part);
    return this.resolve(target as JsonSchema);
  }
}

/** Makes values of the schemas of one document. */
export class SchemaValues {
  readonly #document: SchemaDocument;
  readonly #known: KnownValues;
  readonly #samples = new Map<JsonSchema, Samples>();

  constructor(document: SchemaDocument, known: KnownValues = {}) {
    this.#document = document;
    this.#known = known;
  }

  isValid(schema: JsonSchema, value: unknown): boolean {
    return this.#document.isValid(schema, value);
  }

  /** Samples of every part of the schema; each valid one is as small as it can be otherwise. */
  samples(schema: JsonSchema, name = ''): Samples {
    const made = this.#samples.get(schema);
    if (made !== undefined) return made;
    const { valid, invalid } = this.#any(this.#resolve(schema), name);
    const samples = {
      valid: valid.filter(({ value }) => this.isValid(schema, value)),
      invalid: invalid.filter(({ value }) => !this.isValid(schema, value)),
    };
    this.#samples.set(schema, samples);
    return samples;
  }

  /** Draws from all that is valid: fields in any combination. */
  arbitrary(schema: JsonSchema, name = ''): fc.Arbitrary<unknown> {
    return this.#drawn(this.#resolve(schema), name).filter((value) => this.isValid(schema, value));
  }

  #resolve(schema: JsonSchema): JsonSchema {
    return this.#document.resolve(schema);
  }

  #any(schema: JsonSchema, name: string): Samples {
    const known = this.#known[name];
    if (known !== undefined) {
      const { invalid } = this.#ofSchema(schema, name);
      return { valid: known.map((value) => ({ value, why: 'known' })), invalid };
    }
    return this.#ofSchema(schema, name);
  }

  #ofSchema(schema: JsonSchema, name: string): Samples {
    const branches = schema.oneOf ?? (schema.properties ? undefined : schema.anyOf);
    if (branches !== undefined && schema.type !== 'string') {
      const parts = branches.map((branch) => this.#any(this.#resolve(branch), name));
      return {
        valid: parts.flatMap(({ valid }) => valid),
        invalid: parts.flatMap(({ invalid }) => invalid),
      };
    }
    const types = [schema.type ?? []].flat();
    const parts = types.map((type) => this.#ofType(type, schema));
    const wrong = Object.entries(OF_EACH_TYPE)
      .filter(([type]) => !types.includes(type))
      .map(([type, value]) => ({ value, why: `is ${type}` }));
    const given = (schema.enum ?? []).map((value) => ({ value, why: `is ${String(value)}` }));
    const examples = (schema.examples ?? []).map((value) => ({ value, why: 'the example' }));
    return {
      valid: [...given, ...parts.flatMap(({ valid }) => valid), ...examples],
      invalid: [...wrong, ...parts.flatMap(({ invalid }) => invalid)],
    };
  }

  #ofType(type: string, schema: JsonSchema): Samples {
    switch (type) {
      case 'string': {
        return this.#texts(schema);
      }
      case 'integer':
      case 'number': {
        return numbers(schema);
      }
      case 'boolean': {
        return {
          valid: [true, false].map((value) => ({ value, why: String(value) })),
          invalid: [],
        };
      }
      case 'array': {
        return this.#lists(schema);
      }
      case 'object': {
        return this.#objects(schema);
      }
      default: {
        return { valid: [{ value: null, why: 'null' }], invalid: [] };
      }
    }
  }

  #texts(schema: JsonSchema): Samples {
    const { const: constant, enum: values, pattern, minLength = 0, maxLength } = schema;
    const wrong = BAD_TEXTS.filter((text) => !this.isValid(schema, text))
      .slice(0, WRONG_TEXTS)
      .map((value) => ({ value, why: JSON.stringify(value) }));
    if (constant !== undefined) return { valid: [{ value: constant, why: 'is' }], invalid: wrong };
    if (values !== undefined) return { valid: [], invalid: wrong };
    const drawn =
      pattern === undefined ? [] : fc.sample(textsOf(pattern), { numRuns: 12, seed: 1 });
    const examples = (schema.examples ?? []) as string[];
    const short =
      pattern === undefined ? ['x'.repeat(Math.max(1, minLength)), 'é \u{1f600}'] : drawn;
    const long = [...drawn, ...examples, 'a'].flatMap((text) =>
      this.#lengthened(schema, text, Math.min(maxLength ?? 300, LONG_TEXT)),
    );
    const fitting = short.filter((text) => this.isValid(schema, text)).slice(0, TEXTS);
    const tooLong = maxLength === undefined ? [] : ['x'.repeat(maxLength + 1)];
    return {
      valid: [...fitting, ...(minLength === 0 ? [''] : []), ...long.slice(0, 1)].map((value) => ({
        value,
        why: `${JSON.stringify(value.slice(0, 40))}, length ${value.length}`,
      })),
      invalid: [...wrong, ...tooLong.map((value) => ({ value, why: 'too long' }))],
    };
  }

  /** The text made as long as it may be, where its end can be repeated. */
  #lengthened(schema: JsonSchema, text: string, length: number): string[] {
    if (text.length >= length) return [];
    return ['a', '0']
      .map((end) => text.padEnd(length, end))
      .filter((long) => this.isValid(schema, long));
  }

  #lists(schema: JsonSchema): Samples {
    const { items = {}, minItems = 0, maxItems } = schema;
    const { valid, invalid } = this.samples(items);
    const values = valid.map(({ value }) => value);
    const many = (length: number): Sample[] =>
      values.length === 0 || length > 2000
        ? []
        : [
            {
              value: Array.from({ length }, (_, i) => values[i % values.length]),
              why: `${length}`,
            },
          ];
    return {
      valid: [...many(0), ...within(valid, (value) => [value], 'item'), ...many(maxItems ?? 3)],
      invalid: [
        ...within(invalid, (value) => [value], 'item'),
        ...(maxItems === undefined ? [] : many(maxItems + 1)),
        ...(minItems > 0 ? many(minItems - 1) : []),
      ],
    };
  }

  #objects(schema: JsonSchema): Samples {
    const { properties = {}, required = [], additionalProperties } = schema;
    const parts = Object.entries(properties).map(
      ([name, field]) => [name, this.#any(this.#resolve(field), name)] as const,
    );
    const firsts = parts.flatMap(([name, { valid }]) =>
      valid.slice(0, 1).map((v) => [name, v.value]),
    );
    const all = Object.fromEntries(firsts) as Fields;
    const base = Object.fromEntries(
      firsts.filter(([name]) => required.includes(String(name))),
    ) as Fields;
    const whole = [base, all, ...Object.keys(all).map((name) => ({ ...base, [name]: all[name] }))];
    // Fields that exclude each other, or need each other.
    const pairs = Object.keys(all).flatMap((a, i) =>
      Object.keys(all)
        .slice(i + 1)
        .map((b) => ({ ...base, [a]: all[a], [b]: all[b] })),
    );
    const smallest = [...whole, ...pairs].find((value) => this.isValid(schema, value));
    const withFields = (beginning: Fields, kind: 'valid' | 'invalid'): Sample[] =>
      parts.flatMap(([name, samples]) =>
        within(samples[kind], (value) => ({ ...beginning, [name]: value }), name),
      );
    const missing = required.map((name) => {
      const { [name]: _, ...value } = smallest ?? base;
      return { value, why: `without ${name}` };
    });
    const maps = additionalProperties instanceof Object ? this.#maps(schema, base) : undefined;
    const open = { value: { ...smallest, [UNKNOWN_FIELD]: 1 }, why: 'unknown field' };
    return {
      valid: [
        ...[smallest ?? base, all, ...pairs.slice(0, smallest === base ? 0 : pairs.length)].map(
          (value) => ({ value, why: Object.keys(value).join() }),
        ),
        ...withFields(smallest ?? base, 'valid'),
        ...(maps?.valid ?? [open]),
      ],
      invalid: [
        ...withFields(smallest ?? base, 'invalid'),
        ...missing,
        ...(maps?.invalid ?? [open]),
      ],
    };
  }

  /** Objects whose names the caller chooses. */
  #maps(
    { additionalProperties, propertyNames = {}, maxProperties }: JsonSchema,
    base: Fields,
  ): Samples {
    const values = this.samples(additionalProperties as JsonSchema);
    const names = this.#texts({ type: 'string', ...propertyNames });
    const [first] = values.valid;
    const fields = (count: number): Sample => ({
      value: Object.fromEntries(
        Array.from({ length: count }, (_, i) => [`name${i}`, first?.value]),
      ),
      why: `${count} names`,
    });
    return {
      valid: [
        { value: base, why: 'no names' },
        fields(maxProperties ?? 3),
        ...within(values.valid, (value) => ({ ...base, name: value }), 'value'),
        ...within(names.valid, (name) => ({ ...base, [String(name)]: first?.value }), 'name'),
      ],
      invalid: [
        ...(maxProperties === undefined ? [] : [fields(maxProperties + 1)]),
        ...within(values.invalid, (value) => ({ ...base, name: value }), 'value'),
        ...within(names.invalid, (name) => ({ ...base, [String(name)]: first?.value }), 'name'),
      ],
    };
  }

  #drawn(schema: JsonSchema, name: string): fc.Arbitrary<unknown> {
    const samples = this.samples(schema, name).valid.map(({ value }) => value);
    const some = fc.constantFrom(...(samples.length === 0 ? [undefined] : samples));
    if (this.#known[name] !== undefined) return some;
    const { type, properties, required = [], items, pattern } = schema;
    if (type === 'object' && properties !== undefined) {
      const fields = Object.entries(properties).map(([key, field]) => {
        return [key, this.#drawn(this.#resolve(field), key)] as const;
      });
      const model = Object.fromEntries(fields);
      return fc.record(model, { requiredKeys: required.filter((key) => key in model) });
    }
    if (type === 'array' && items !== undefined) {
      return fc.array(this.arbitrary(items), { maxLength: Math.min(schema.maxItems ?? 4, 4) });
    }
    if (type === 'integer' && schema.enum === undefined) {
      const { minimum: min = -(2 ** 31), maximum: max = 2 ** 31 } = schema;
      return fc.oneof(some, fc.integer({ min, max: Math.min(max, Number.MAX_SAFE_INTEGER) }));
    }
    if (type === 'string' && schema.enum === undefined && pattern !== undefined) {
      return fc.oneof(some, textsOf(pattern));
    }
    return some;
  }
}

function numbers({ type, minimum, maximum }: JsonSchema): Samples {
  const bounds = [minimum, maximum].filter((bound) => bound !== undefined);
  const others = [
    minimum === undefined ? [-1] : [],
    maximum === undefined ? [1_000_000] : [],
  ].flat();
  const beyond = [
    minimum === undefined ? [] : minimum - 1,
    maximum === undefined ? [] : maximum + 1,
  ];
  return {
    valid: [...bounds, ...others].map((value) => ({ value, why: String(value) })),
    invalid: [...beyond.flat(), ...(type === 'integer' ? [1.5] : []), '7'].map((value) => ({
      value,
      why: JSON.stringify(value),
    })),
  };
}
