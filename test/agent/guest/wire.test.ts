/* The contract is written twice, for TypeScript and for C: both must say the same. */
import { readFile } from 'node:fs/promises';
import test from 'ava';
import {
  GUEST_FAILURES,
  GUEST_LIMITS,
  GUEST_PROTOCOL_VERSION,
  guestFrames,
  hostFrames,
  PROCESS_FLAGS,
} from '../../../agent/machines/guest-link/guest-protocol.ts';

const header = await readFile(new URL('../../../agent/guest/wire.h', import.meta.url), 'utf8');

const valueOf = (text: string): number => {
  const factors = text.replaceAll('MIB', '1048576').replaceAll('KIB', '1024').split(' + ');
  return factors.reduce(
    (sum, term) => sum + term.split(' * ').reduce((product, part) => product * Number(part), 1),
    0,
  );
};

const inC = (prefix: string): Record<string, number> =>
  Object.fromEntries(
    [...header.matchAll(new RegExp(`^ {2}${prefix}_(\\w+) = ([^,]+),$`, 'gmu'))].map((match) => [
      match[1] ?? '',
      valueOf(match[2] ?? ''),
    ]),
  );

const upper = (name: string): string => name.replaceAll(/[A-Z]/gu, (c) => `_${c}`).toUpperCase();
const inTypeScript = (values: Readonly<Record<string, number>>): Record<string, number> =>
  Object.fromEntries(Object.entries(values).map(([name, value]) => [upper(name), value]));

const kinds = (frames: Record<string, { kind: number }>): Record<string, number> =>
  Object.fromEntries(Object.entries(frames).map(([name, { kind }]) => [name, kind]));

test('both files have the same version, bounds, kinds, flags and failures', (t) => {
  t.deepEqual(inC('LIMIT'), inTypeScript(GUEST_LIMITS));
  t.deepEqual(inC('KIND'), inTypeScript({ ...kinds(hostFrames), ...kinds(guestFrames) }));
  t.deepEqual(inC('FLAG'), inTypeScript(PROCESS_FLAGS));
  t.deepEqual(inC('FAILURE'), inTypeScript(GUEST_FAILURES));
  t.deepEqual(inC('PROTOCOL'), { VERSION: GUEST_PROTOCOL_VERSION });
});
