import test from 'ava';
import * as fc from '../../../../helpers/fast-check.ts';
import { XMLParser } from 'fast-xml-parser';
import { renderError, S3Error } from '../../../../../agent/edge/s3/protocol/errors.ts';
import { urlEncodeKey } from '../../../../../agent/edge/s3/protocol/uri-escapes.ts';
import {
  element,
  renderAnswer,
  renderDocument,
} from '../../../../../agent/edge/s3/protocol/xml.ts';
import { unicodeText } from '../../../../helpers/unicode-text.ts';

const textOf = (text: string): string => element('a', text).markup.slice(3, -4);

test('an answer has a declaration, the namespace of S3, and no undefined children', (t) => {
  const children = [
    element('KeyCount', 1),
    element('IsTruncated', false),
    undefined,
    element('Contents', [element('Key', 'a&b')]),
  ];
  t.is(
    renderAnswer('ListBucketResult', children),
    '<?xml version="1.0" encoding="UTF-8"?>\n' +
      '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><KeyCount>1</KeyCount>' +
      '<IsTruncated>false</IsTruncated><Contents><Key>a&amp;b</Key></Contents></ListBucketResult>\n',
  );
});

test('only named entities are used, and none for quotes', (t) => {
  t.is(textOf(`<a href="x">'&amp;'</a>`), `&lt;a href="x"&gt;'&amp;amp;'&lt;/a&gt;`);
  t.is(textOf('\u00e9\u{1F600}\n\t]]>'), '\u00e9\u{1F600}\n\t]]&gt;');
});

test('characters that XML cannot carry become U+FFFD', (t) => {
  for (const character of ['\0', '\x01', '\x1f', '\r', '\uFFFE', '\uFFFF', '\uD800', '\uDC00']) {
    t.is(textOf(`a${character}b`), 'a\uFFFDb', JSON.stringify(character));
  }
});

test('any text gives a document that a parser reads back', (t) => {
  const parser = new XMLParser({ parseTagValue: false, trimValues: false });
  const property = fc.property(unicodeText({ minLength: 1 }), (text) => {
    const parsed = parser.parse(renderDocument(element('a', text)), true) as { a: string };
    // oxlint-disable-next-line no-control-regex -- those that are replaced
    const expected = text.toWellFormed().replaceAll(/[\0-\x08\x0b-\x1f\ufffe\uffff]/g, '\ufffd');
    t.is(parsed.a, expected);
  });
  fc.assert(property);
});

test('url-encoded keys are ASCII and are decoded alike by both kinds of decoders', (t) => {
  t.is(
    urlEncodeKey("test_file(3) +!'*~%20/\u00e9.png"),
    'test_file%283%29%20%2B%21%27%2A~%2520/%C3%A9.png',
  );
  const property = fc.property(fc.string({ unit: 'grapheme' }), (key) => {
    const encoded = urlEncodeKey(key);
    t.regex(encoded, /^[A-Za-z0-9\-._~%/]*$/);
    t.is(decodeURIComponent(encoded), key);
    t.is(new URLSearchParams(`key=${encoded}`).get('key'), key);
  });
  fc.assert(property);
});

test('an error is rendered with its code, message, resource and request id', (t) => {
  const error = new S3Error('NoSuchKey', 'No "key"');
  t.is(error.status, 404);
  t.is(
    renderError(error, '/b/a&b', 'req-1'),
    '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>NoSuchKey</Code>' +
      '<Message>No "key"</Message><Resource>/b/a&amp;b</Resource>' +
      '<RequestId>req-1</RequestId></Error>\n',
  );
});

test('a full disk is not answered with a status that clients retry', (t) => {
  t.is(new S3Error('QuotaExceeded').status, 400);
  t.is(new S3Error('SlowDown').status, 503);
});
