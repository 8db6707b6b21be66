import Type, { type Static } from 'typebox';
import { integer, list, text } from './kinds.ts';
import { refuseProblems } from './read-settings.ts';

/* Traces, by the names that OpenTelemetry gives its settings (docs/monitoring/tracing.md). */

const PAIR = /^([!#$%&'*+.^_`|~\w-]+)=([\x21-\x7e]*)$/u;

/** A pair as OpenTelemetry writes it: the value is percent-encoded. */
function readPair(pair: string): [name: string, value: string] | undefined {
  const [, name, value] = PAIR.exec(pair) ?? [];
  if (name === undefined || value === undefined) return undefined;
  try {
    const decoded = decodeURIComponent(value);
    return /[\0\r\n]/u.test(decoded) ? undefined : [name, decoded];
  } catch {
    return undefined;
  }
}

const PAIRS = {
  form: '`name=value` pairs',
  expected: 'pairs name=value with percent-encoded values, separated by commas',
  isFit: (item: string): boolean => readPair(item) !== undefined,
};

export const tracingSettings = {
  OTEL_EXPORTER_OTLP_ENDPOINT: Type.Optional(
    text({
      pattern: '^https?://[^/?#\\s@]+(/[^?#\\s]*)?$',
      form: 'URL',
      fallback: 'none: no traces',
      description:
        'receiver of traces (OTLP over HTTP, as JSON): `/v1/traces` is appended ([traces](monitoring/tracing.md))',
    }),
  ),
  OTEL_EXPORTER_OTLP_HEADERS: list({
    ...PAIRS,
    description: 'headers for the receiver, such as its key; values are percent-encoded',
  }),
  OTEL_RESOURCE_ATTRIBUTES: list({
    ...PAIRS,
    description: 'attributes of everything that this process sends to the receiver',
  }),
  OTEL_TRACES_SAMPLER: Type.Enum(
    ['parentbased_always_on', 'always_on', 'parentbased_traceidratio', 'traceidratio'],
    {
      default: 'parentbased_always_on',
      description:
        'which requests are traced. `parentbased_`: a caller that sends a `traceparent` decides for its requests',
    },
  ),
  OTEL_TRACES_SAMPLER_ARG: Type.Optional(
    text({
      pattern: String.raw`^(?:0(?:\.\d{1,9})?|1(?:\.0{1,9})?)$`,
      form: '0 to 1',
      expected: 'a number from 0 to 1',
      fallback: '1',
      description: 'the share of traces with a sampler of `traceidratio`',
    }),
  ),
  OTEL_BSP_SCHEDULE_DELAY: integer({
    unit: 'ms',
    default: 5_000,
    minimum: 100,
    maximum: 60_000,
    description: 'how long spans wait for others before they are sent together',
  }),
};

export const TracingSettings = Type.Object(tracingSettings);

export interface TracingConfig {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly resource: Readonly<Record<string, string>>;
  readonly sampler: {
    /** A caller that says whether it traces the request decides. */
    readonly isParentBased: boolean;
    /** Undefined: all traces. */
    readonly ratio: number | undefined;
  };
  readonly sendEveryMs: number;
}

const readPairs = (items: readonly string[]): Record<string, string> =>
  Object.fromEntries(items.map(readPair).filter((pair) => pair !== undefined));

/**
 * @returns undefined when traces are off.
 * @throws ConfigurationError when settings do not go together
 */
export function readTracing(settings: Static<typeof TracingSettings>): TracingConfig | undefined {
  const { OTEL_EXPORTER_OTLP_ENDPOINT: endpoint, OTEL_EXPORTER_OTLP_HEADERS: headers } = settings;
  const { OTEL_TRACES_SAMPLER: sampler, OTEL_TRACES_SAMPLER_ARG: ratio } = settings;
  const isByRatio = sampler.endsWith('traceidratio');
  const problems: string[] = [];
  if (endpoint === undefined && headers.length > 0) {
    problems.push('OTEL_EXPORTER_OTLP_ENDPOINT is not set, but OTEL_EXPORTER_OTLP_HEADERS is');
  }
  if (ratio !== undefined && !isByRatio) {
    problems.push(`OTEL_TRACES_SAMPLER_ARG is set, but the sampler ${sampler} takes none`);
  }
  refuseProblems(problems);
  if (endpoint === undefined) return undefined;
  return {
    url: `${endpoint.replace(/\/+$/u, '')}/v1/traces`,
    headers: readPairs(headers),
    resource: readPairs(settings.OTEL_RESOURCE_ATTRIBUTES),
    sampler: {
      isParentBased: sampler.startsWith('parentbased_'),
      ratio: isByRatio ? Number(ratio ?? 1) : undefined,
    },
    sendEveryMs: settings.OTEL_BSP_SCHEDULE_DELAY,
  };
}
