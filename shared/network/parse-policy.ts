import { AppError } from '../errors.ts';
import { SCHEMA_LIMITS } from '../schemas/limits.ts';
import {
  type EgressPolicy,
  NetworkPolicy,
  type RuleObject,
  type ShownNetworkPolicy,
} from '../schemas/network-policy.ts';
import { compile } from '../validate.ts';
import { checkForwardUrl, checkHeaders } from './brokered-headers.ts';
import { parseTarget, targetText } from './egress-target.ts';

const checkSchema = compile(NetworkPolicy);
const DRAIN_PATTERN = /^[a-z0-9_.*-]+$/u;

/**
 * Checks a policy and brings it into its normal form, in which equal rules have equal texts.
 * @param input parsed JSON
 * @throws AppError `bad_request` naming what is wrong, without any secret
 */
export function parseNetworkPolicy(input: unknown, where = 'network'): NetworkPolicy {
  const { egress } = checkSchema(input, where);
  if (egress === undefined) return {};
  const at = `${where}.egress`;
  const { allow, deny, dns, drain_on_pause: drain } = egress;
  const parsed: EgressPolicy = {
    default: egress.default,
    ...(allow === undefined ? {} : { allow: parseAllow(allow, `${at}.allow`) }),
    ...(deny === undefined ? {} : { deny: parseDeny(deny, `${at}.deny`) }),
    ...(dns === undefined ? {} : { dns }),
    ...(drain === undefined ? {} : { drain_on_pause: parseDrain(drain, `${at}.drain_on_pause`) }),
  };
  if (Buffer.byteLength(JSON.stringify(parsed)) > SCHEMA_LIMITS.networkPolicyBytesMax) {
    const message = `${where} is longer than ${SCHEMA_LIMITS.networkPolicyBytesMax} bytes as JSON`;
    throw new AppError('bad_request', message);
  }
  return { egress: parsed };
}

/** The policy without its secrets, as it is published and shown. */
export function redactPolicy({ egress }: NetworkPolicy): ShownNetworkPolicy {
  if (egress === undefined) return {};
  const { allow, ...rest } = egress;
  if (allow === undefined) return { egress: rest };
  return {
    egress: {
      ...rest,
      allow: allow.map((rule) => (typeof rule === 'string' ? rule : redactRule(rule))),
    },
  };
}

function redactRule({ target, transform, forward_url: url }: RuleObject) {
  const names = Object.keys(transform?.headers ?? {}).map((name) => [name, null] as const);
  return {
    target,
    ...(transform === undefined ? {} : { transform: { headers: Object.fromEntries(names) } }),
    ...(url === undefined ? {} : { forward_url: new URL(url).origin }),
  };
}

/** A target that is named again changes nothing, unless one of the two is brokered. */
function parseAllow(
  rules: readonly (string | RuleObject)[],
  where: string,
): (string | RuleObject)[] {
  const parsed = new Map<string, string | RuleObject>();
  for (const [index, rule] of rules.entries()) {
    const at = `${where}.${index}`;
    const next = typeof rule === 'string' ? normalTarget(rule, at) : parseRule(rule, at);
    const target = typeof next === 'string' ? next : next.target;
    const before = parsed.get(target);
    if (before !== undefined && !(typeof before === 'string' && typeof next === 'string')) {
      throw new AppError('bad_request', `${at}: ${target} has two rules`);
    }
    parsed.set(target, next);
  }
  return [...parsed.values()];
}

const normalTarget = (text: string, where: string): string => targetText(parseTarget(text, where));

/** A rule that brokers nothing is a plain one. */
function parseRule(rule: RuleObject, where: string): string | RuleObject {
  const { transform, forward_url: url } = rule;
  const target = parseTarget(rule.target, where);
  const text = targetText(target);
  const headers = transform?.headers ?? {};
  const addsHeaders = Object.keys(headers).length > 0;
  if (!addsHeaders && url === undefined) return text;
  if (target.kind === 'network') {
    const message = `${where}: ${text} is an address; headers and forward_url need a domain`;
    throw new AppError('bad_request', message);
  }
  checkHeaders(headers, `${where}.transform.headers`);
  return {
    target: text,
    ...(addsHeaders ? { transform: { headers } } : {}),
    ...(url === undefined ? {} : { forward_url: checkForwardUrl(url, `${where}.forward_url`) }),
  };
}

const parseDeny = (targets: readonly string[], where: string): string[] => [
  ...new Set(targets.map((text, index) => normalTarget(text, `${where}.${index}`))),
];

function parseDrain(patterns: readonly string[], where: string): string[] {
  const parsed = patterns.map((text, index) => {
    const pattern = text.toLowerCase();
    if (DRAIN_PATTERN.test(pattern)) return pattern;
    const message = `${where}.${index}: ${JSON.stringify(text)} is not a pattern of host names`;
    throw new AppError('bad_request', message);
  });
  return [...new Set(parsed)];
}
