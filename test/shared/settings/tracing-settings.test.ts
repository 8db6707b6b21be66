import test from 'ava';
import { readSettings, type SettingTexts } from '../../../shared/settings/read-settings.ts';
import { readTracing, TracingSettings } from '../../../shared/settings/tracing-settings.ts';

const read = (texts: SettingTexts) => readTracing(readSettings(TracingSettings, texts));
const OTEL_EXPORTER_OTLP_ENDPOINT = 'https://receiver.example:4318';

test('without an endpoint there are no traces', (t) => {
  t.is(read({}), undefined);
  t.is(read({ OTEL_EXPORTER_OTLP_ENDPOINT: '' }), undefined);
  t.is(read({ OTEL_RESOURCE_ATTRIBUTES: 'a=b', OTEL_TRACES_SAMPLER: 'always_on' }), undefined);
});

test('an endpoint switches all traces on, and callers decide about theirs', (t) => {
  t.deepEqual(read({ OTEL_EXPORTER_OTLP_ENDPOINT }), {
    url: 'https://receiver.example:4318/v1/traces',
    headers: {},
    resource: {},
    sampler: { isParentBased: true, ratio: undefined },
    sendEveryMs: 5_000,
  });
});

test('everything can be set by the names of OpenTelemetry', (t) => {
  const config = read({
    OTEL_EXPORTER_OTLP_ENDPOINT: 'http://[::1]:4318/otlp/',
    OTEL_EXPORTER_OTLP_HEADERS: 'authorization=Bearer%20a%2Cb,x-key=k=1',
    OTEL_RESOURCE_ATTRIBUTES: 'deployment.environment=production',
    OTEL_TRACES_SAMPLER: 'traceidratio',
    OTEL_TRACES_SAMPLER_ARG: '0.25',
    OTEL_BSP_SCHEDULE_DELAY: '200',
  });
  t.deepEqual(config, {
    url: 'http://[::1]:4318/otlp/v1/traces',
    headers: { authorization: 'Bearer a,b', 'x-key': 'k=1' },
    resource: { 'deployment.environment': 'production' },
    sampler: { isParentBased: false, ratio: 0.25 },
    sendEveryMs: 200,
  });
});

const refused = test.macro<[texts: SettingTexts, problem: RegExp]>((t, texts, message) => {
  t.throws(() => read(texts), { message });
});

const withHeaders = (OTEL_EXPORTER_OTLP_HEADERS: string): SettingTexts => ({
  OTEL_EXPORTER_OTLP_ENDPOINT,
  OTEL_EXPORTER_OTLP_HEADERS,
});

test(
  'an endpoint with credentials is refused',
  refused,
  {
    OTEL_EXPORTER_OTLP_ENDPOINT: 'http://user:password@receiver.example',
  },
  /OTEL_EXPORTER_OTLP_ENDPOINT does not match/u,
);
test('a header without a value is refused', refused, withHeaders('key'), /must be pairs/u);
test('a header with a line break is refused', refused, withHeaders('a=%0D%0Ab'), /must be pairs/u);
test('a header that is badly escaped is refused', refused, withHeaders('a=%GG'), /must be pairs/u);
test(
  'headers without an endpoint are refused',
  refused,
  {
    OTEL_EXPORTER_OTLP_HEADERS: 'a=b',
  },
  /OTEL_EXPORTER_OTLP_ENDPOINT is not set/u,
);
test(
  'a ratio above 1 is refused',
  refused,
  {
    OTEL_TRACES_SAMPLER: 'traceidratio',
    OTEL_TRACES_SAMPLER_ARG: '1.5',
  },
  /must be a number from 0 to 1/u,
);
test(
  'a ratio for a sampler that takes none is refused',
  refused,
  {
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_TRACES_SAMPLER_ARG: '0.5',
  },
  /the sampler parentbased_always_on takes none/u,
);
