/** Checks the API description with the rules of redocly's linter; prints what breaks them. */
import { createConfig, lintFromString } from '@redocly/openapi-core';
import { openApiDocument } from '../control/http/openapi.ts';
import { routes } from '../control/routes.ts';

const config = await createConfig({
  extends: ['recommended-strict'],
  rules: {
    'operation-description': 'error',
    'parameter-description': 'error',
    'tag-description': 'error',
    'no-schema-type-mismatch': 'error',
    'no-invalid-schema-examples': 'error',
    'no-unused-components': 'error',
    // Constraints between fields name those of the schema around them.
    'no-required-schema-properties-undefined': 'off',
  },
});
const source = JSON.stringify(openApiDocument(routes, 'https://berth.example'));
const problems = await lintFromString({ source, absoluteRef: 'openapi.json', config });
for (const { ruleId, message, location } of problems) {
  console.error(`openapi.json ${location[0]?.pointer ?? ''}: ${message} (${ruleId})`);
}
process.exitCode = problems.length > 0 ? 1 : 0;
