import * as fc from './fast-check.ts';

/**
 * Values that `parseJson` reads. The generator likes to make the key `__proto__`, at any depth,
 * which `parseJson` refuses.
 */
export const jsonValues = fc
  .jsonValue({ maxDepth: 8 })
  .filter((value) => !JSON.stringify(value).includes('__proto__'));
