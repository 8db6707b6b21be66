import { Ajv, type ErrorObject, type FuncKeywordDefinition, type ValidateFunction } from 'ajv';
import formats from 'ajv-formats';
import Type, { type Static, type TSchema } from 'typebox';
import { AppError } from './errors.ts';

// Strict about schemas, lenient about input: unknown fields are ignored, because newer clients may
// send fields that this version does not know (docs/api.md, Compatibility).
const options = {
  allErrors: false,
  discriminator: true,
  strict: true,
  strictTypes: false,
  strictRequired: false,
  // Schemas are made by TypeBox, and strict mode knows their keywords; checking them against the
  // schema of schemas took a tenth of a second at the start of each process.
  meta: false,
  validateSchema: false,
} as const;
const ajv = new Ajv(options);

/** Schema keyword `lowerCase: true`: text is read without regard to case. */
const lowerCase: FuncKeywordDefinition = {
  keyword: 'lowerCase',
  type: 'string',
  schemaType: 'boolean',
  modifying: true,
  errors: false,
  validate: (isSet: boolean, text: string, _schema, at) => {
    if (isSet && at !== undefined)
      Reflect.set(at.parentData, at.parentDataProperty, text.toLowerCase());
    return true;
  },
};
ajv.addKeyword(lowerCase);
/**
 * Schema keyword `documented`: further keywords for the API's description alone. The service checks
 * them, because it can say better what is wrong.
 */
ajv.addKeyword('documented');
formats.default(ajv);

/** Integers in JSON's form: no other spelling of one is accepted. */
const INTEGER = /^-?(?:0|[1-9]\d{0,15})$/u;

function readText(type: unknown, text: unknown): unknown {
  // A parameter that may be repeated is a text when it is not.
  if (type === 'array') return Array.isArray(text) ? text : [text];
  if (typeof text !== 'string') return text;
  if (type === 'integer' && INTEGER.test(text)) return Number(text);
  return type === 'boolean' && /^(?:true|false)$/u.test(text) ? text === 'true' : text;
}

/** Parameters as their schema has them; text that is none of its type stays, and is refused. */
function readParameters(schema: TSchema, input: unknown): unknown {
  const { properties = {} } = schema as { properties?: Record<string, { type?: unknown }> };
  return Object.fromEntries(
    Object.entries(input as Record<string, unknown>).map(([name, text]) => [
      name,
      readText(properties[name]?.type, text),
    ]),
  );
}

/** A union of objects that are told apart by the text in the field `tag`. */
export const taggedUnion = <T extends TSchema[]>(tag: string, variants: [...T]) =>
  Type.Unsafe<Static<T[number]>>({
    type: 'object',
    discriminator: { propertyName: tag },
    required: [tag],
    oneOf: variants,
  });

/** How much an error says: more, the deeper it lies and when it is not about the type. */
const rankOf = ({ instancePath, keyword }: ErrorObject): number =>
  2 * instancePath.split('/').length + Number(keyword !== 'type' && keyword !== 'anyOf');

/** A union has an error for each alternative: finds that of the alternative that was meant. */
const mostTelling = (errors: readonly ErrorObject[] | null | undefined): ErrorObject | undefined =>
  errors?.toSorted((a, b) => rankOf(b) - rankOf(a))[0];

function describe(where: string, error: ErrorObject | undefined): string {
  if (error === undefined) return `${where} is not valid`;
  const path = error.instancePath.slice(1).replaceAll('/', '.');
  const subject = path === '' ? where : `${where}: ${path}`;
  if (error.keyword === 'discriminator') {
    return `${subject} has no known ${String(Reflect.get(error.params, 'tag'))}`;
  }
  const unknownField: unknown = Reflect.get(error.params, 'additionalProperty');
  if (typeof unknownField === 'string') {
    return `${subject} has the unknown field ${JSON.stringify(unknownField.slice(0, 64))}`;
  }
  const allowed: unknown = Reflect.get(error.params, 'allowedValues');
  const detail = Array.isArray(allowed) ? ` (${allowed.join(', ')})` : '';
  return `${subject} ${error.message ?? 'is not valid'}${detail}`;
}

/**
 * Makes a schema a function that checks its input and returns it, typed. It is compiled at the
 * first use, since most processes use only some of the schemas that they import.
 * @param coerce whether input is an object of texts, as from a query string, in which integers and
 *   booleans are written as in JSON
 * @throws AppError `bad_request` naming the first field that is wrong
 */
export function compile<T extends TSchema>(
  schema: T,
  { coerce = false } = {},
): (input: unknown, where: string) => Static<T> {
  let check: ValidateFunction | undefined;
  return (input, where) => {
    check ??= ajv.compile(schema);
    const value = coerce ? readParameters(schema, input) : input;
    if (!check(value))
      throw new AppError('bad_request', describe(where, mostTelling(check.errors)));
    return value as Static<T>;
  };
}
