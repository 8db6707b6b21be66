import test from 'ava';
import { z } from 'zod';
import { sandboxTools } from '../../clients/mcp/src/sandboxes.ts';
import { CreateSandbox } from '../../shared/schemas/sandbox-input.ts';
import { SCHEMA_LIMITS } from '../../shared/schemas/limits.ts';
import { compile } from '../../shared/validate.ts';

const checkApi = compile(CreateSandbox);
const isTakenByApi = (body: object): boolean => {
  try {
    checkApi(body, 'body');
    return true;
  } catch {
    return false;
  }
};

const image = (length: number): string => `a/${'b'.repeat(length - 2)}`;

test('sandbox_create takes the sizes that the API takes', (t) => {
  const input = z.strictObject(
    sandboxTools.find(({ name }) => name === 'sandbox_create')?.input ?? {},
  );
  const atBounds: readonly (readonly [string, string, readonly unknown[]])[] = [
    [
      'mem_size_mib',
      'mem_size_mib',
      around(SCHEMA_LIMITS.sandboxMemMibMin, SCHEMA_LIMITS.sandboxMemMibMax),
    ],
    ['vcpu_count', 'vcpu_count', around(1, SCHEMA_LIMITS.sandboxVcpusMax)],
    ['idle_ttl_seconds', 'idle_ttl_seconds', around(0, SCHEMA_LIMITS.sandboxTtlSecondsMax)],
    ['image', 'base_image', around(2, SCHEMA_LIMITS.imageReferenceLengthMax).slice(2).map(image)],
  ];
  for (const [field, inApi, values] of atBounds) {
    for (const value of values) {
      const isTaken = input.safeParse({ [field]: value }).success;
      t.is(isTaken, isTakenByApi({ [inApi]: value }), `${field} ${String(value).slice(0, 9)}`);
    }
  }
});

const around = (minimum: number, maximum: number): number[] => [
  minimum - 1,
  minimum,
  maximum,
  maximum + 1,
];
