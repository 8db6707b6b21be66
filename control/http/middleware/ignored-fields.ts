import type { TSchema } from 'typebox';
import { HTTP_LIMITS } from '../limits.ts';

/** The parts of a schema that say which fields an object has. */
interface Shape {
  readonly properties?: Readonly<Record<string, Shape>>;
  readonly additionalProperties?: Shape | boolean;
  readonly items?: Shape;
  readonly anyOf?: readonly Shape[];
  readonly oneOf?: readonly Shape[];
  readonly discriminator?: { readonly propertyName: string };
  readonly const?: unknown;
  readonly enum?: readonly unknown[];
}

/** From the body to a field: names, and indexes of arrays. */
type Path = readonly (string | number)[];

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/**
 * The schemas of which one describes the object: the one that its tag selects, where there is one.
 */
function alternativesFor(shape: Shape, object: Record<string, unknown>): readonly Shape[] {
  const alternatives = shape.oneOf ?? shape.anyOf ?? [shape];
  const tag = shape.discriminator?.propertyName;
  if (tag === undefined) return alternatives;
  return alternatives.filter(({ properties }) => {
    const { const: only, enum: any = [only] } = properties?.[tag] ?? {};
    return any.includes(object[tag]);
  });
}

/** Finds the fields of a value that its schema does not know, whether or not the value is valid. */
function* unknownFields(shape: Shape, value: unknown, path: Path): Generator<Path> {
  if (Array.isArray(value)) {
    if (shape.items === undefined) return;
    for (const [index, item] of value.entries()) {
      yield* unknownFields(shape.items, item, [...path, index]);
    }
    return;
  }
  if (!isObject(value)) return;
  const alternatives = alternativesFor(shape, value);
  const known = Object.assign({}, ...alternatives.map(({ properties }) => properties)) as Record<
    string,
    Shape
  >;
  const others = alternatives.find(({ additionalProperties }) => isObject(additionalProperties));
  const isOpen = others === undefined && Object.keys(known).length === 0;
  if (isOpen) return;
  for (const [name, field] of Object.entries(value)) {
    const fieldShape = Object.hasOwn(known, name) ? known[name] : others?.additionalProperties;
    if (!isObject(fieldShape)) yield [...path, name];
    // Nothing is begun for a plain value: there may be very many.
    else if (typeof field === 'object') yield* unknownFields(fieldShape, field, [...path, name]);
  }
}

/** Percent-encoded but for letters, digits, `_` and `-`, so that nothing in it means anything. */
const encode = (name: string): string =>
  encodeURIComponent(
    name.slice(0, HTTP_LIMITS.ignoredFieldNameLengthMax).toWellFormed(),
  ).replaceAll(
    /[!'()*.~]/gu,
    (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`,
  );

/** Renders a path as programs write it: `mounts[0].foo`. */
const render = (path: Path): string =>
  path
    .map((part) => (typeof part === 'number' ? `[${part}]` : `.${encode(part)}`))
    .join('')
    .replace(/^\./u, '');

/** The schemas of an endpoint; without one it has no parameters, or no fields. */
interface InputSchemas {
  readonly query?: TSchema | undefined;
  readonly body?: TSchema | undefined;
}

/** The query and body of a request. */
interface Input {
  readonly query?: Readonly<Record<string, unknown>>;
  readonly body?: unknown;
}

function* ignoredNames(schemas: InputSchemas, { query = {}, body }: Input): Generator<string> {
  const { properties = {} } = (schemas.query ?? {}) as Shape;
  for (const name of Object.keys(query)) {
    if (!Object.hasOwn(properties, name)) yield `?${encode(name)}`;
  }
  if (schemas.body !== undefined) {
    for (const path of unknownFields(schemas.body, body, [])) yield render(path);
  } else if (isObject(body)) {
    for (const name of Object.keys(body)) yield encode(name);
  }
}

/**
 * Names the query parameters and the fields of a request's body that are ignored because the
 * endpoint has no such parameter or field. Parameters come first, with a question mark.
 * @returns the value of the header `X-Ignored-Fields`, undefined when everything is known; it ends
 *   in `...` when there are more than it may name
 */
export function listIgnored(schemas: InputSchemas, input: Input): string | undefined {
  const names: string[] = [];
  let length = 0;
  for (const name of ignoredNames(schemas, input)) {
    length += name.length;
    if (
      names.length === HTTP_LIMITS.ignoredFieldsListedMax ||
      length > HTTP_LIMITS.ignoredFieldsListLengthMax
    ) {
      names.push('...');
      break;
    }
    names.push(name);
  }
  return names.length === 0 ? undefined : names.join(', ');
}
