/* Requests made from the API's own description: what it allows, and what it forbids. */
import * as fc from './fast-check.ts';
import type { JsonSchema, KnownValues, Sample } from './schema-values.ts';
import { type SchemaDocument, SchemaValues } from './schema-values.ts';

interface Parameter {
  readonly name: string;
  readonly in: 'path' | 'query' | 'header';
  readonly required: boolean;
  readonly schema: JsonSchema;
}

export interface Operation {
  readonly operationId: string;
  readonly parameters: readonly Parameter[];
  readonly requestBody?: {
    readonly required: boolean;
    readonly content: Readonly<Record<string, { readonly schema: JsonSchema }>>;
  };
  readonly responses: Readonly<Record<string, { readonly content?: object }>>;
}

export interface ApiDescription {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>;
  readonly components: { readonly schemas: Readonly<Record<string, JsonSchema>> };
}

/** A request, and whether the description allows it. */
export interface DescribedRequest {
  readonly operationId: string;
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: unknown;
  readonly isValid: boolean;
  /** Whether a success is a stream of events. */
  readonly isStream: boolean;
  /** The part that was varied, and how. */
  readonly why: string;
}

type Texts = Readonly<Record<string, string | undefined>>;

/** The parts of a request; text of the body is sent as it is. */
interface Parts {
  readonly path: Texts;
  readonly query: Texts;
  readonly header: Texts;
  readonly body: unknown;
}

type TextSample = Sample & { readonly value: string };

type Place = 'path' | 'query' | 'header';

/** URLs have no such segments, and an empty one is another path. */
const isSegment = (text: string): boolean => !['', '.', '..'].includes(text);
const isHeaderValue = (text: string): boolean =>
  /^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$/u.test(text);

/** The text form on the wire; undefined for what has no form there. */
function wireText(place: Place, given: unknown): string | undefined {
  // A parameter that may be repeated is given once.
  const value: unknown = Array.isArray(given) && given.length === 1 ? given[0] : given;
  if (!['string', 'number', 'boolean'].includes(typeof value)) return undefined;
  const text = typeof value === 'string' ? value : JSON.stringify(value);
  if (place === 'path' && !isSegment(text)) return undefined;
  return place === 'header' && !isHeaderValue(text) ? undefined : text;
}

/** Makes the requests of one operation. */
export class OperationRequests {
  readonly operation: Operation;
  readonly #method: string;
  readonly #template: string;
  readonly #values: SchemaValues;
  readonly #body: JsonSchema | undefined;

  constructor(
    document: SchemaDocument,
    [method, template, operation]: readonly [string, string, Operation],
    known: KnownValues,
  ) {
    this.operation = operation;
    this.#method = method.toUpperCase();
    this.#template = template;
    this.#values = new SchemaValues(document, known);
    this.#body = operation.requestBody?.content['application/json']?.schema;
  }

  /** Each part varied by itself, all others being valid. */
  *systematic(): Generator<DescribedRequest> {
    const base = this.#base();
    yield this.#request(base, true, 'smallest');
    for (const parameter of this.operation.parameters) {
      const { name, in: place, required } = parameter;
      const { valid, invalid } = this.#samplesOf(parameter);
      const varied = (value: string | undefined): Parts => ({
        ...base,
        [place]: { ...base[place], [name]: value },
      });
      for (const { value, why } of valid)
        yield this.#request(varied(value), true, `${name} ${why}`);
      for (const { value, why } of invalid) {
        yield this.#request(varied(value), false, `${name} ${why}`);
      }
      if (required && place !== 'path') {
        yield this.#request(varied(undefined), false, `without ${name}`);
      }
    }
    yield* this.#bodies(base);
  }

  *#bodies(base: Parts): Generator<DescribedRequest> {
    if (this.#body === undefined) return;
    const { valid, invalid } = this.#values.samples(this.#body);
    for (const { value, why } of valid) yield this.#request({ ...base, body: value }, true, why);
    for (const { value, why } of invalid) yield this.#request({ ...base, body: value }, false, why);
    yield this.#request({ ...base, body: '{"broken' }, false, 'no JSON');
    const needsBody = this.operation.requestBody?.required === true;
    yield this.#request({ ...base, body: undefined }, !needsBody, 'without a body');
  }

  /** Valid requests with every part drawn at random. */
  drawn(): fc.Arbitrary<DescribedRequest> {
    const ofPlace = (place: Place): fc.Arbitrary<Texts> => {
      const parameters = this.operation.parameters.filter((parameter) => parameter.in === place);
      const model = parameters.map((parameter) => {
        const samples = this.#samplesOf(parameter).valid.map(({ value }) => value);
        return [parameter.name, fc.constantFrom(...samples)] as const;
      });
      const requiredKeys = parameters.filter(({ required }) => required).map(({ name }) => name);
      return fc.record(Object.fromEntries(model), { requiredKeys });
    };
    const body =
      this.#body === undefined ? fc.constant(undefined) : this.#values.arbitrary(this.#body);
    return fc
      .record({ path: ofPlace('path'), query: ofPlace('query'), header: ofPlace('header'), body })
      .map((parts) => this.#request(parts, true, 'drawn'));
  }

  /** Texts as parameters have them; several values may be the same text. */
  #samplesOf({ name, in: place, schema }: Parameter): Record<'valid' | 'invalid', TextSample[]> {
    const { valid, invalid } = this.#values.samples(schema, name);
    const texts = (samples: readonly Sample[]): TextSample[] =>
      samples.flatMap(({ value, why }) => {
        const text = wireText(place, value);
        return text === undefined ? [] : [{ value: text, why }];
      });
    const isOfNumbers = schema.type === 'integer' || schema.type === 'boolean';
    const isAllowed = (text: string): boolean =>
      this.#values.isValid(schema, isOfNumbers ? toJson(text) : text);
    const forbidden = [...texts(invalid), ...(isOfNumbers ? texts(NO_NUMBERS) : [])];
    return { valid: texts(valid), invalid: forbidden.filter(({ value }) => !isAllowed(value)) };
  }

  #base(): Parts {
    const first = (place: Place): Texts =>
      Object.fromEntries(
        this.operation.parameters
          .filter((parameter) => parameter.in === place && parameter.required)
          .map((parameter) => [parameter.name, this.#samplesOf(parameter).valid[0]?.value]),
      );
    const body = this.#body && this.#values.samples(this.#body).valid[0]?.value;
    return { path: first('path'), query: first('query'), header: first('header'), body };
  }

  #request(parts: Parts, isValid: boolean, why: string): DescribedRequest {
    const path = this.#template.replaceAll(/\{(\w+)\}/gu, (_, name: string) =>
      encodeURIComponent(parts.path[name] ?? ''),
    );
    const query = new URLSearchParams();
    const headers: Record<string, string> = {};
    for (const [name, value] of Object.entries(parts.query)) {
      if (value !== undefined) query.set(name, value);
    }
    for (const [name, value] of Object.entries(parts.header)) {
      if (value !== undefined) headers[name] = value;
    }
    const { operationId, responses } = this.operation;
    const isStream = 'text/event-stream' in (responses['200']?.content ?? {});
    const search = query.size === 0 ? '' : `?${query.toString()}`;
    const common = { operationId, method: this.#method, path: `${path}${search}`, headers };
    return { ...common, body: parts.body, isValid, isStream, why };
  }
}

const NO_NUMBERS = ['', '1e1', '0x10', ' 7', '+7', '1,5', 'yes', 'TRUE', '1', '07', '7.0'].map(
  (value) => ({ value, why: JSON.stringify(value) }),
);

/** The value that a parameter's text is, when it is written as JSON writes it. */
function toJson(text: string): unknown {
  if (text === 'true' || text === 'false') return text === 'true';
  return /^-?(?:0|[1-9]\d*)$/u.test(text) ? Number(text) : text;
}

/** Every operation of the description. */
export const operationsOf = ({ paths }: ApiDescription): [string, string, Operation][] =>
  Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]): [string, string, Operation] => [
      method,
      path,
      operation,
    ]),
  );
