import { type Html, html } from './html.ts';
import type { Section } from './markdown.ts';
import { renderInline } from './markdown.ts';
import { SchemaView, type ShownSchema } from './schema-view.ts';

interface Parameter {
  readonly name: string;
  readonly in: 'path' | 'query' | 'header';
  readonly required: boolean;
  readonly description?: string;
  readonly deprecated?: boolean;
  readonly schema: ShownSchema;
}

type Content = Readonly<Record<string, { readonly schema: ShownSchema }>>;

interface Operation {
  readonly operationId: string;
  readonly summary: string;
  readonly description: string;
  readonly tags: readonly string[];
  readonly security?: readonly object[];
  readonly parameters: readonly Parameter[];
  readonly requestBody?: { readonly required: boolean; readonly content: Content };
  readonly responses: Readonly<
    Record<string, { readonly description: string; readonly content?: Content }>
  >;
}

/** The parts of the API's description that the reference shows. */
export interface Description {
  readonly tags: readonly { readonly name: string; readonly description: string }[];
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>;
  readonly components: { readonly schemas: Readonly<Record<string, ShownSchema>> };
}

/** The operations of one tag. */
export interface ReferencePage {
  readonly url: string;
  readonly title: string;
  readonly body: Html;
  readonly sections: readonly Section[];
}

interface Endpoint {
  readonly method: string;
  readonly path: string;
  readonly operation: Operation;
}

const BODY_TYPE = 'application/json';

/** How the operation is called from a shell. */
function curlOf(view: SchemaView, { method, path, operation }: Endpoint): string {
  const { parameters, requestBody, security } = operation;
  const query = parameters
    .filter((parameter) => parameter.in === 'query' && parameter.required)
    .map(({ name, schema }) => `${name}=${encodeURIComponent(String(view.example(schema)))}`);
  const url = path.replaceAll(/\{(\w+)\}/gu, (_, name: string) => {
    const parameter = parameters.find((other) => other.name === name);
    return parameter === undefined ? name : String(view.example(parameter.schema));
  });
  const [type, content] = Object.entries(requestBody?.content ?? {})[0] ?? [];
  const isJson = type === BODY_TYPE && content !== undefined;
  const body = isJson ? JSON.stringify(view.example(content.schema)) : '@file';
  const search = query.length === 0 ? '' : `?${query.join('&')}`;
  const verb = isJson && method === 'post' ? '' : ` -X ${method.toUpperCase()}`;
  return [
    `curl -sS${method === 'get' ? '' : verb} "$BASE_URL${url}${search}"`,
    ...(security?.length === 0 ? [] : [`-H "Authorization: Bearer $API_KEY"`]),
    ...(content === undefined
      ? []
      : [`${isJson ? '-d' : '-T'} '${body.replaceAll("'", String.raw`'\''`)}'`]),
  ].join(' \\\n  ');
}

/** A form that sends the request from the page; `docs.js` does it. */
function trialOf(view: SchemaView, { method, path, operation }: Endpoint): Html {
  const isSendable =
    operation.requestBody === undefined || BODY_TYPE in operation.requestBody.content;
  if (!isSendable || '*/*' in (operation.responses['200']?.content ?? {})) return html``;
  const inputs = operation.parameters
    .filter((parameter) => parameter.in !== 'header')
    .map(
      (parameter) =>
        html`<label
          >${parameter.name}<input
            name="${parameter.in}.${parameter.name}"
            ${parameter.required ? html` required` : ''}
        /></label> `,
    );
  const schema = operation.requestBody?.content[BODY_TYPE]?.schema;
  const body =
    schema === undefined
      ? html``
      : html`<label
          >Body<textarea name="body" rows="5" spellcheck="false">
${JSON.stringify(view.example(schema), undefined, 2)}</textarea>
        </label> `;
  return html`<details>
    <summary>Try it</summary>
    <form class="trial" data-method="${method.toUpperCase()}" data-path="${path}">
      <label>API key<input name="key" type="password" autocomplete="off" /></label>
      ${inputs}${body}<button>Send</button>
      <pre tabindex="0"><output></output></pre>
    </form>
  </details> `;
}

function errorsOf(responses: Operation['responses']): Html {
  const errors = Object.entries(responses).filter(([status]) => Number(status) >= 400);
  const rows = errors.map(([status, { description, content = {} }]) => {
    const parts = content[BODY_TYPE]?.schema.allOf ?? [];
    const codes = parts.flatMap((part) => part.properties?.['code']?.enum ?? []);
    return html`<tr>
      <td>${status}</td>
      <td>${codes.map((code) => html`<code>${String(code)}</code> `)}</td>
      <td>${description}</td>
    </tr> `;
  });
  return html`<details>
    <summary>Errors</summary>
    <div class="scroll" tabindex="0">
      <table>
        <thead>
          <tr>
            <th>Status</th>
            <th>Codes</th>
            <th>Meaning</th>
          </tr>
        </thead>
        <tbody>
          ${rows}
        </tbody>
      </table>
    </div>
  </details> `;
}

function answersOf(view: SchemaView, responses: Operation['responses']): Html[] {
  return Object.entries(responses)
    .filter(([status]) => Number(status) < 400)
    .map(([status, { description, content = {} }]) => {
      const [type, body] = Object.entries(content)[0] ?? [];
      const fields = body === undefined || type !== BODY_TYPE ? html`` : view.fields(body.schema);
      return html`<details>
        <summary>${status} ${description}${type === undefined ? '' : ` – ${type}`}</summary>
        ${fields}
      </details> `;
    });
}

function article(view: SchemaView, endpoint: Endpoint): Html {
  const { method, path, operation } = endpoint;
  const { parameters, requestBody, operationId } = operation;
  const listed = parameters.map(({ schema, description, deprecated, ...parameter }) =>
    view.field(
      parameter.name,
      {
        ...schema,
        ...(description === undefined ? {} : { description }),
        ...(deprecated === undefined ? {} : { deprecated }),
      },
      { isRequired: parameter.required },
    ),
  );
  const body = requestBody?.content[BODY_TYPE];
  return html`<article>
    <h2 id="${operationId}">${operation.summary}</h2>
    <p class="path"><span class="method ${method}">${method}</span> <code>${path}</code></p>
    <p>${renderInline(operation.description)}</p>
    ${
      listed.length === 0
        ? ''
        : html`<h3>Parameters</h3>
            <ul class="fields">
              ${listed}
            </ul>`
    }
    ${
      body === undefined
        ? ''
        : html`<h3>Body</h3>
            ${view.fields(body.schema)}`
    }
    <h3>Example</h3>
    <pre tabindex="0"><code>${curlOf(view, endpoint)}</code></pre>
    ${trialOf(view, endpoint)}
    <h3>Answers</h3>
    ${answersOf(view, operation.responses)}${errorsOf(operation.responses)}
  </article> `;
}

/** The reference of the API, one page for each tag. */
export function referencePages(description: Description, base: string): ReferencePage[] {
  const view = new SchemaView(description.components.schemas);
  const endpoints = Object.entries(description.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]): Endpoint => ({ method, path, operation })),
  );
  return description.tags.map(({ name, description: about }) => {
    const own = endpoints.filter(({ operation }) => operation.tags.includes(name));
    const list = own.map(
      ({ method, path, operation }) =>
        html`<tr>
          <td><span class="method ${method}">${method}</span></td>
          <td><code>${path}</code></td>
          <td><a href="#${operation.operationId}">${operation.summary}</a></td>
        </tr> `,
    );
    return {
      url: `${base}/reference/${name.toLowerCase().replaceAll(' ', '-')}`,
      title: name,
      body: html`<h1>${name}</h1>
        <p>${renderInline(about)}</p>
        <div class="scroll" tabindex="0">
          <table>
            <tbody>
              ${list}
            </tbody>
          </table>
        </div>
        ${own.map((endpoint) => article(view, endpoint))}`,
      sections: own.map(({ method, path, operation }) => ({
        title: operation.summary,
        anchor: operation.operationId,
        level: 2,
        text: `${method} ${path} ${operation.operationId} ${operation.description}`,
      })),
    };
  });
}
