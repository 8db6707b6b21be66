import test from 'ava';
import { visible, visibleJson } from '../../../clients/cli/src/text.ts';

/** C0, DEL, C1, and the characters that change the direction of text. */
const CONTROLS = [
  ...Array.from({ length: 0x20 }, (_, code) => code),
  ...Array.from({ length: 0x21 }, (_, code) => 0x7f + code),
  ...[
    0x61c, 0x200e, 0x200f, 0x202a, 0x202b, 0x202c, 0x202d, 0x202e, 0x2066, 0x2067, 0x2068, 0x2069,
  ],
].map((code) => String.fromCodePoint(code));

test('no control character of a text reaches the terminal, in a sentence or in JSON', (t) => {
  for (const control of CONTROLS) {
    const text = `č${control}[2J`;
    const name = JSON.stringify(control);
    t.false(visible(text).includes(control), name);
    t.true(visible(text).startsWith('č'), name);
    for (const indent of [undefined, 2]) {
      const json = visibleJson({ [text]: [text] }, indent);
      const shown = indent === undefined ? json : json.replaceAll(/\n */gu, '');
      t.false(shown.includes(control), name);
      t.deepEqual(JSON.parse(json), { [text]: [text] }, name);
    }
  }
});
