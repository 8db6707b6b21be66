import test from 'ava';
import {
  isReferenceTo,
  readImageAliases,
  referenceOf,
} from '../../../control/region/image-aliases.ts';
import Type from 'typebox';
import { ControlSettings } from '../../../shared/settings/control-settings.ts';
import { readSettings } from '../../../shared/settings/read-settings.ts';

const { IMAGE_ALIASES } = ControlSettings.properties;
// `ubuntu:26.04` is what public clients ask for when their user did not choose an image.
const defaults = readSettings(Type.Object({ IMAGE_ALIASES }), {});
const aliases = readImageAliases(defaults.IMAGE_ALIASES);
const alpine = { name: 'alpine', version: '3.22', key: 'a1' };
const debian = { name: 'debian', version: '13', codename: 'trixie', key: 'd1' };

test('an image is referenced by the names in its description', (t) => {
  for (const reference of ['debian:13', 'debian:trixie', 'debian', 'debian:latest']) {
    t.true(isReferenceTo(debian, aliases, reference), reference);
    t.false(isReferenceTo(alpine, aliases, reference), reference);
  }
  for (const reference of ['debian:12', 'debian:bookworm', 'alpine', 'someone/debian']) {
    t.false(isReferenceTo(debian, aliases, reference), reference);
  }
  t.is(referenceOf(debian), 'debian:13');
  t.is(referenceOf(undefined), 'default');
});

test('the reference that public clients send by default stands for any image', (t) => {
  for (const image of [alpine, debian, undefined]) {
    t.true(isReferenceTo(image, aliases, 'ubuntu:26.04'));
    t.true(isReferenceTo(image, aliases, 'default'));
    t.false(isReferenceTo(image, aliases, 'ubuntu:24.04'));
  }
});

test('every spelling of a reference to the official registry is the same', (t) => {
  for (const prefix of [
    'library/',
    'docker.io/',
    'docker.io/library/',
    'index.docker.io/library/',
  ]) {
    t.true(isReferenceTo(debian, aliases, `${prefix}debian:13`), prefix);
    t.true(isReferenceTo(debian, aliases, `${prefix}ubuntu:26.04`), prefix);
    t.false(isReferenceTo(debian, aliases, `${prefix}debian:12`), prefix);
  }
  for (const other of ['docker.io/someone/debian:13', 'registry.example/library/debian:13']) {
    t.false(isReferenceTo(debian, aliases, other), other);
  }
});
