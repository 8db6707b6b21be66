import * as sdk from '@aws-sdk/client-s3';

/*
 * The service model of S3, as the AWS SDK carries it: schemas are arrays whose first element is
 * their kind. Read here: 9 [_, namespace, name, traits, input], 3 structures [_, namespace, name,
 * traits, member names, member schemas], 1 lists [_, namespace, name, traits, item].
 */
type Schema = readonly unknown[];

/** Where a request carries a field of its operation. */
export interface S3Field {
  readonly kind: 'header' | 'query' | 'element';
  /** The name in the request; of an element its path below the document's root. */
  readonly name: string;
}

const LIST = 1;
const STRUCTURE = 3;

const resolve = (schema: unknown): unknown =>
  typeof schema === 'function' ? resolve((schema as () => unknown)()) : schema;

const schemaOf = (name: string): Schema => {
  const found: unknown = Reflect.get(sdk, `${name}$`);
  if (!Array.isArray(found)) throw new Error(`the SDK has no schema of ${name}`);
  return found;
};

/** A member's own schema and its traits. */
function splitMember(member: unknown): [schema: unknown, traits: Record<string, unknown>] {
  const isPair = Array.isArray(member) && member.length === 2 && typeof member[1] === 'object';
  if (!isPair) return [resolve(member), {}];
  const [schema, traits] = member as [unknown, Record<string, unknown>];
  return [resolve(schema), traits];
}

function membersOf(structure: Schema): [name: string, member: unknown][] {
  const [, , , , names, members] = structure as [0, 0, 0, 0, string[], unknown[]];
  return names.map((name, index) => [name, members[index]]);
}

const isKind = (schema: unknown, kind: number): schema is Schema =>
  Array.isArray(schema) && schema[0] === kind;

function elementsOf(structure: Schema, path: string): S3Field[] {
  return membersOf(structure).flatMap(([name, member]) => {
    const [schema, traits] = splitMember(member);
    const { xmlName } = traits;
    const at = `${path}${typeof xmlName === 'string' ? xmlName : name}`;
    const item = isKind(schema, LIST) ? splitMember(schema[4])[0] : schema;
    if (isKind(item, STRUCTURE)) return elementsOf(item, `${at}/`);
    return [{ kind: 'element', name: at } as const];
  });
}

function fieldsOfMember([, member]: [string, unknown]): S3Field[] {
  const [schema, traits] = splitMember(member);
  const { httpHeader, httpPrefixHeaders, httpQuery, httpPayload } = traits;
  if (typeof httpHeader === 'string') return [{ kind: 'header', name: httpHeader.toLowerCase() }];
  if (typeof httpPrefixHeaders === 'string') {
    return [{ kind: 'header', name: `${httpPrefixHeaders}model` }];
  }
  if (typeof httpQuery === 'string') return [{ kind: 'query', name: httpQuery }];
  if (httpPayload !== undefined && isKind(schema, STRUCTURE)) return elementsOf(schema, '');
  return [];
}

/** The headers, query parameters and elements that a request of the operation may carry. */
export function fieldsOf(operation: string): S3Field[] {
  const input = resolve(schemaOf(operation)[4]) as Schema;
  return membersOf(input).flatMap(fieldsOfMember);
}

/** All operations of the service. */
export const operationNames = Object.entries(sdk).flatMap(([name, value]) =>
  name.endsWith('$') && Array.isArray(value) && value[0] === 9 ? [name.slice(0, -1)] : [],
);

/** The method and the target of an operation, as the SDK has it. */
export function requestOf(operation: string): { method: string; target: string } {
  const traits = schemaOf(operation)[3] as { http: [string, string, number] };
  const [method, target] = traits.http;
  return { method, target };
}
