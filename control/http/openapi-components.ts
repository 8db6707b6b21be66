import { parseJson } from '../../shared/json.ts';

type Node = Record<string, unknown>;

const isNode = (value: unknown): value is Node => typeof value === 'object' && value !== null;

const DATA = new Set(['examples', 'default', 'enum', 'const', 'required']);

/** An example value, where the schema itself gives one. */
function exampleOf({ type, const: constant, default: fallback, enum: values }: Node): unknown {
  if (constant !== undefined) return undefined;
  if (fallback !== undefined) return fallback;
  if (Array.isArray(values)) return (values as unknown[])[0];
  return type === 'boolean' ? true : undefined;
}

/**
 * The schemas that an OpenAPI document names: each schema with a title becomes a component, and
 * whatever contains it refers to that.
 */
export class OpenApiComponents {
  readonly #schemas = new Map<string, Node>();

  /** All that were named, by their names. */
  get schemas(): Record<string, object> {
    return Object.fromEntries([...this.#schemas].toSorted(([a], [b]) => (a < b ? -1 : 1)));
  }

  /** @returns the schema as it stands in the document */
  add(schema: object): Node {
    // Only what is written out counts; the library keeps notes of its own in schemas.
    return this.#addNode(parseJson(JSON.stringify(schema)) as Node);
  }

  #addNode({ documented = {}, ...rest }: Node): Node {
    const node = { ...rest, ...(documented as Node) };
    const entries = Object.entries(node).map(([key, value]) => [key, this.#addAny(key, value)]);
    const copy = Object.fromEntries(entries) as Node;
    // Only the validator uses it: in OpenAPI it needs a named schema for each branch.
    delete copy['discriminator'];
    delete copy['lowerCase'];
    const example = copy['examples'] === undefined ? exampleOf(copy) : undefined;
    if (example !== undefined) copy['examples'] = [example];
    const { title } = copy;
    return typeof title === 'string' ? this.#name(title, copy) : copy;
  }

  /** Examples, defaults and constants are data, whatever they look like. */
  #addAny(key: string, value: unknown): unknown {
    if (DATA.has(key)) return value;
    if (key === 'properties' && isNode(value)) {
      return Object.fromEntries(
        Object.entries(value).map(([name, property]) => [name, this.#addNode(property as Node)]),
      );
    }
    if (Array.isArray(value)) return value.map((each: unknown) => this.#addAny('', each));
    return isNode(value) ? this.#addNode(value) : value;
  }

  /** @throws Error when another schema has this title */
  #name(title: string, schema: Node): Node {
    const known = this.#schemas.get(title);
    if (known !== undefined && JSON.stringify(known) !== JSON.stringify(schema)) {
      throw new Error(`two schemas have the title ${title}`);
    }
    this.#schemas.set(title, schema);
    return { $ref: `#/components/schemas/${title}` };
  }
}
