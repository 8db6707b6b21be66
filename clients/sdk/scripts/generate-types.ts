/** Generates the types of the API from its routes; with --check, says whether they are current. */
import { readFile, writeFile } from 'node:fs/promises';
import openapiTS, { astToString, type OpenAPI3 } from 'openapi-typescript';
import { openApiDocument } from '../../../control/http/openapi.ts';
import { routes } from '../../../control/routes.ts';

const target = new URL('../src/generated/api.ts', import.meta.url);
const HEAD = '/* Generated from the routes of the API by `npm run generate`. Do not edit. */\n\n';

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
const text = HEAD + astToString(await openapiTS(document, { defaultNonNullable: false }));

if (process.argv.includes('--check')) {
  if (text !== (await readFile(target, 'utf8').catch(() => ''))) {
    console.error('clients/sdk/src/generated/api.ts is not current: run npm run generate');
    process.exitCode = 1;
  }
} else {
  await writeFile(target, text);
}
