import Type from 'typebox';
import { SCHEMA_LIMITS } from './limits.ts';
import {
  DRAIN_PATTERN,
  EGRESS_TARGET,
  HEADER_NAME,
  HEADER_VALUE,
  HTTPS_URL,
  IPV4_ADDRESSES,
} from './patterns.ts';

/* Network policies as callers give and see them (docs/network.md). Objects are closed: a field that
 * this version does not know might restrict something, so it is refused rather than ignored. */

const closed = { additionalProperties: false } as const;

const TARGET = {
  minLength: 1,
  maxLength: SCHEMA_LIMITS.networkTargetLengthMax,
  documented: { pattern: EGRESS_TARGET },
  description: 'An IPv4 address, a CIDR block, a domain, or *. and a domain for its subdomains.',
  examples: ['*.example.com'],
} as const;
const Target = Type.String(TARGET);

interface TransformOf<Value> {
  readonly headers?: Readonly<Record<string, Value>>;
}

/** A rule with more than its target; values of headers are secrets and never shown. */
interface RuleObjectOf<Value> {
  readonly target: string;
  readonly transform?: TransformOf<Value>;
  readonly forward_url?: string;
}

interface PolicyOf<Value> {
  readonly egress?: {
    readonly default: 'allow' | 'deny';
    readonly allow?: readonly (string | RuleObjectOf<Value>)[];
    readonly deny?: readonly string[];
    readonly dns?: 'open';
    readonly drain_on_pause?: readonly string[];
  };
}

/** A policy as a caller gives it; normalised once `parseNetworkPolicy` has returned it. */
export type NetworkPolicy = PolicyOf<string>;
export type EgressPolicy = NonNullable<NetworkPolicy['egress']>;
export type RuleObject = RuleObjectOf<string>;

/** A policy as it is published and shown: without the secrets of its rules. */
export type ShownNetworkPolicy = PolicyOf<null>;

/** Headers are added to requests for a name. */
const BROKERED_ADDRESS = {
  type: 'object',
  properties: { target: { pattern: IPV4_ADDRESSES } },
  required: ['target'],
  anyOf: [
    {
      properties: {
        transform: { properties: { headers: { minProperties: 1 } }, required: ['headers'] },
      },
      required: ['transform'],
    },
    { required: ['forward_url'] },
  ],
};

/** A target as text, or an object; one schema for both, so that errors name what is wrong. */
const allowRule = (
  headerValue: object,
  headerExample: string | null,
  forwardUrl: string,
  transformNeeds: readonly 'headers'[],
) => ({
  type: ['string', 'object'],
  ...TARGET,
  documented: { ...TARGET.documented, not: BROKERED_ADDRESS },
  ...closed,
  required: ['target'],
  properties: {
    target: Target,
    transform: {
      type: 'object',
      description: 'What is done to requests to the target; nothing, if it has no headers.',
      ...closed,
      required: transformNeeds,
      properties: {
        headers: {
          type: 'object',
          maxProperties: SCHEMA_LIMITS.networkHeadersPerRuleMax,
          additionalProperties: headerValue,
          documented: {
            propertyNames: {
              pattern: HEADER_NAME,
              maxLength: SCHEMA_LIMITS.networkHeaderNameLengthMax,
            },
          },
          description:
            'Added to each request to the target; they replace those of the guest. Not those that say ' +
            'how a message is delimited or routed, such as host, content-length and connection.',
          examples: [{ authorization: headerExample }],
        },
      },
    },
    forward_url: {
      type: 'string',
      maxLength: SCHEMA_LIMITS.networkForwardUrlLengthMax,
      pattern: HTTPS_URL,
      description: forwardUrl,
      examples: ['https://gateway.example.com'],
    },
  },
});

const policy = (rule: object) => ({
  type: 'object',
  ...closed,
  properties: {
    egress: {
      type: 'object',
      description: 'What counts for connections that the sandbox begins.',
      ...closed,
      required: ['default'],
      properties: {
        default: {
          type: 'string',
          enum: ['allow', 'deny'],
          description: 'What counts for connections that no rule matches.',
        },
        allow: {
          type: 'array',
          maxItems: SCHEMA_LIMITS.networkRulesPerListMax,
          items: rule,
          description:
            'What is let through. One rule for a target, if it has headers or forward_url.',
          examples: [['pypi.org', '*.example.com']],
        },
        deny: {
          type: 'array',
          maxItems: SCHEMA_LIMITS.networkRulesPerListMax,
          items: Target,
          description: 'Counts before allow.',
          examples: [['203.0.113.0/24']],
        },
        dns: {
          type: 'string',
          enum: ['open'],
          description:
            'Has every name looked up. Without it, where default is deny, only names that a rule ' +
            'allows are, and others do not exist (NXDOMAIN).',
        },
        drain_on_pause: {
          type: 'array',
          maxItems: SCHEMA_LIMITS.networkDrainPatternsMax,
          items: {
            type: 'string',
            minLength: 1,
            maxLength: SCHEMA_LIMITS.networkTargetLengthMax,
            documented: { pattern: DRAIN_PATTERN },
          },
          description: 'A pause waits for requests to these hosts; * stands for any characters.',
          examples: [['*.example.com']],
        },
      },
    },
  },
});

const secretRule = (transformNeeds: readonly 'headers'[]): object =>
  allowRule(
    {
      type: 'string',
      maxLength: SCHEMA_LIMITS.networkHeaderValueLengthMax,
      documented: { pattern: HEADER_VALUE },
    },
    'Bearer a-token',
    'An https URL that requests to the target are sent to instead. At most ' +
      `${SCHEMA_LIMITS.networkForwardUrlLengthMax} characters in its ` +
      'normal form, without credentials and fragment.',
    transformNeeds,
  );

/** The policy that `parseNetworkPolicy` returns, for jobs: a transform in it has headers. */
export const ParsedNetworkPolicy = Type.Unsafe<NetworkPolicy>(policy(secretRule(['headers'])));

export const NetworkPolicy = Type.Unsafe<NetworkPolicy>({
  ...policy(secretRule([])),
  title: 'NetworkPolicy',
  description: 'What the sandbox may connect to; an empty object restricts nothing.',
});

export const ShownNetworkPolicy = Type.Unsafe<ShownNetworkPolicy>({
  ...policy(
    allowRule(
      { type: 'null', description: 'Values are never shown.' },
      null,
      'Its origin only: the rest may be secret.',
      ['headers'],
    ),
  ),
  title: 'ShownNetworkPolicy',
  description: 'What the sandbox may connect to, without secrets.',
});
