import test from 'ava';
import { AppError } from '../../shared/errors.ts';
import { formatImageReference, parseImageReference } from '../../shared/image-reference.ts';
import { SCHEMA_LIMITS } from '../../shared/schemas/limits.ts';

const digest = `sha256:${'a'.repeat(64)}`;

const normalise = (text: string): string => formatImageReference(parseImageReference(text));

test('what callers leave out is filled in as Docker does', (t) => {
  t.is(normalise('debian'), 'docker.io/library/debian:latest');
  t.is(normalise('debian:12'), 'docker.io/library/debian:12');
  t.is(normalise('library/debian:12'), 'docker.io/library/debian:12');
  t.is(normalise('index.docker.io/library/debian:12'), 'docker.io/library/debian:12');
  t.is(normalise('bitnami/redis'), 'docker.io/bitnami/redis:latest');
  t.is(normalise('localhost/app'), 'localhost/app:latest');
  t.is(normalise('127.0.0.1:5000/a/b:c'), '127.0.0.1:5000/a/b:c');
  t.is(normalise('Example.org:5000/app'), 'example.org:5000/app:latest');
});

test('the normal form of the longest reference that callers may send is one, too', (t) => {
  const registry = `${Array.from({ length: 4 }, () => 'r'.repeat(63)).join('.')}:5000/`;
  const longest = registry.padEnd(SCHEMA_LIMITS.imageReferenceLengthMax, 'a');
  const normal = normalise(longest);
  t.is(normal, `${longest}:latest`);
  t.is(normalise(normal), normal);
});

test('a digest makes the tag beside it meaningless', (t) => {
  t.is(normalise(`debian:12@${digest}`), `docker.io/library/debian@${digest}`);
});

for (const text of [
  '',
  ' ',
  'UPPER',
  'a b',
  'name:',
  ':tag',
  'name@',
  'name@sha256:abc',
  `name@sha512:${'a'.repeat(64)}`,
  `name@${digest}@${digest}`,
  'a//b',
  '/a',
  'a/',
  '../a',
  'host.example:port/a',
  'https://host.example/a',
  'docker://a',
  '-option',
  'a:-x',
  'a\nb',
  'é',
  `a${'b'.repeat(600)}`,
]) {
  test(`${JSON.stringify(text.slice(0, 40))} is no reference`, (t) => {
    const error = t.throws(() => parseImageReference(text), { instanceOf: AppError });
    t.is(error?.code, 'bad_request');
  });
}
