import { type Html, html } from './html.ts';
import { renderInline } from './markdown.ts';

/** The documented view of a schema. */
export interface ShownSchema {
  readonly $ref?: string;
  readonly title?: string;
  readonly description?: string;
  readonly deprecated?: boolean;
  readonly type?: string | readonly string[];
  readonly const?: unknown;
  readonly enum?: readonly unknown[];
  readonly default?: unknown;
  readonly examples?: readonly unknown[];
  readonly format?: string;
  readonly pattern?: string;
  readonly minLength?: number;
  readonly maxLength?: number;
  readonly minimum?: number;
  readonly maximum?: number;
  readonly minItems?: number;
  readonly maxItems?: number;
  readonly items?: ShownSchema;
  readonly properties?: Readonly<Record<string, ShownSchema>>;
  readonly required?: readonly string[];
  readonly additionalProperties?: ShownSchema | boolean;
  readonly oneOf?: readonly ShownSchema[];
  readonly anyOf?: readonly ShownSchema[];
  readonly allOf?: readonly ShownSchema[];
}

/** Longer patterns tell a reader nothing; the description says them in words. */
const PATTERN_LENGTH_MAX = 60;
const DEPTH_MAX = 8;

/** The forms that a value can have; without those that only say which fields go together. */
const branchesOf = ({ oneOf, anyOf }: ShownSchema): readonly ShownSchema[] =>
  (oneOf ?? anyOf ?? []).filter(
    ({ $ref, type, const: constant }) => ($ref ?? type ?? constant) !== undefined,
  );

/** Shows schemas of one document. */
export class SchemaView {
  readonly #schemas: Readonly<Record<string, ShownSchema>>;

  /** @param schemas the named ones */
  constructor(schemas: Readonly<Record<string, ShownSchema>>) {
    this.#schemas = schemas;
  }

  resolve(schema: ShownSchema): ShownSchema {
    if (schema.$ref === undefined) return schema;
    const { $ref, ...own } = schema;
    return { ...this.#schemas[$ref.split('/').at(-1) ?? ''], ...own };
  }

  /** A value as callers would send it: the required fields, with their examples. */
  example(schema: ShownSchema, depth = 0): unknown {
    const { const: constant, enum: values, ...rest } = this.resolve(schema);
    const { examples, default: fallback, type, items, properties = {}, required = [] } = rest;
    if (constant !== undefined) return constant;
    if (examples !== undefined && examples.length > 0) return examples[0];
    if (fallback !== undefined) return fallback;
    if (values !== undefined) return values[0];
    const [branch] = branchesOf(rest);
    if (branch !== undefined) return this.example(branch, depth);
    if (type === 'array') {
      return items === undefined || depth > DEPTH_MAX ? [] : [this.example(items, depth + 1)];
    }
    if (type !== 'object') return type === 'boolean' ? true : null;
    const names = Object.keys(properties).filter((name) => required.includes(name));
    return Object.fromEntries(
      names.map((name) => [name, this.example(properties[name] ?? {}, depth + 1)]),
    );
  }

  /** The fields of an object, and of what is in it. */
  fields(schema: ShownSchema, depth = 0): Html {
    const whole = this.resolve(schema);
    const branches = branchesOf(whole);
    if (branches.length > 0) {
      return html`<p class="quiet">One of these:</p>
        <ul class="fields">
          ${branches.map((branch) => html`<li>${this.#typeOf(branch)}${this.fields(branch, depth + 1)}</li>`)}
        </ul>`;
    }
    const { properties = {}, required = [], items, additionalProperties } = whole;
    if (depth > DEPTH_MAX) return html``;
    if (items !== undefined) return this.fields(items, depth + 1);
    const named = Object.entries(properties).map(([name, field]) =>
      this.field(name, field, { isRequired: required.includes(name), depth }),
    );
    const others =
      additionalProperties instanceof Object
        ? [this.field('any name', additionalProperties, { isRequired: false, depth })]
        : [];
    const all = [...named, ...others];
    return all.length === 0
      ? html``
      : html`<ul class="fields">
          ${all}
        </ul>`;
  }

  /** Shows a field or parameter. */
  field(
    name: string,
    field: ShownSchema,
    { isRequired, depth = 0 }: { readonly isRequired: boolean; readonly depth?: number },
  ): Html {
    const schema = this.resolve(field);
    const { description, deprecated } = { ...schema, ...field };
    return html`<li>
      <code>${name}</code> <span class="quiet">${this.#typeOf(schema)}</span>${
        isRequired ? html` <span class="required">required</span>` : ''
      }${deprecated === true ? html` <span class="quiet">deprecated</span>` : ''}
      <p>${renderInline(description ?? '')}</p>
      ${this.#bounds(schema)}${this.fields(schema, depth + 1)}
    </li> `;
  }

  #typeOf(schema: ShownSchema): string {
    const whole = this.resolve(schema);
    const { type, items, format, enum: values, const: constant, title } = whole;
    if (constant !== undefined) return JSON.stringify(constant);
    if (values !== undefined) return values.map((value) => JSON.stringify(value)).join(' | ');
    if (type === 'array') return items === undefined ? 'array' : `array of ${this.#typeOf(items)}`;
    const branches = branchesOf(whole);
    if (type === undefined && branches.length > 0) {
      return branches.map((branch) => this.#typeOf(branch)).join(' | ');
    }
    const plain = [type ?? 'any'].flat().join(' | ');
    return format ?? (title === undefined ? plain : `${plain} (${title})`);
  }

  #bounds({ minLength, maxLength, minimum, maximum, maxItems, ...schema }: ShownSchema): Html {
    const isUnbounded = maximum === undefined || maximum === Number.MAX_SAFE_INTEGER;
    const { pattern, default: fallback, examples } = schema;
    const known: (readonly [string, unknown])[] = [
      ['default', fallback],
      ['least', minimum],
      ['most', isUnbounded ? undefined : maximum],
      ['shortest', minLength],
      ['longest', maxLength],
      ['items at most', maxItems],
      [
        'pattern',
        pattern !== undefined && pattern.length <= PATTERN_LENGTH_MAX ? pattern : undefined,
      ],
      ['example', fallback === undefined ? examples?.[0] : undefined],
    ];
    const shown = known.filter(([, value]) => value !== undefined);
    if (shown.length === 0) return html``;
    const texts = shown.map(([name, value], index) => {
      const text = typeof value === 'string' ? value : JSON.stringify(value);
      return html`${index === 0 ? '' : ' · '}${name} <code>${text}</code>`;
    });
    return html`<p class="quiet">${texts}</p>`;
  }
}
