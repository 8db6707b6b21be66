/** Generates src/generated/api.ts, the API's types, from its routes. */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import openapiTS, { astToString, type OpenAPI3 } from 'openapi-typescript';
import { openApiDocument } from '../../../control/http/openapi.ts';
import { routes } from '../../../control/routes.ts';
import { replaceFile } from '../../../scripts/env-file.ts';

const target = join(import.meta.dirname, '../src/generated');

/**
 * Errors are classes of the client (src/errors.ts): their types by operation would be most of the
 * file.
 */
function withoutErrors(document: OpenAPI3): OpenAPI3 {
  const paths = Object.values(document.paths ?? {}) as Record<string, object>[];
  for (const operation of paths.flatMap((path) => Object.values(path))) {
    const { responses = {} } = operation as { responses?: Record<string, object> };
    for (const status of Object.keys(responses)) {
      if (Number(status) >= 400) Reflect.deleteProperty(responses, status);
    }
  }
  return document;
}

const document = withoutErrors(openApiDocument(routes, 'https://berth.example') as OpenAPI3);
// Fields with a default may be left out of a request.
const types = await openapiTS(document, { defaultNonNullable: false });
await mkdir(target, { recursive: true });
await replaceFile(join(target, 'api.ts'), astToString(types));
