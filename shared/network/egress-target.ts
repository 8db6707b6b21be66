import { domainToASCII } from 'node:url';
import ipaddr from 'ipaddr.js';
import { AppError } from '../errors.ts';

/**
 * The destinations that a rule matches. Names are in lower case, in ASCII, and without a dot at the
 * end.
 */
export type EgressTarget =
  /** Every address of an IPv4 block. */
  | { readonly kind: 'network'; readonly cidr: string }
  /** This name alone. */
  | { readonly kind: 'domain'; readonly name: string }
  /** Every name below this one, but not itself. */
  | { readonly kind: 'subdomains'; readonly name: string };

const OCTET = '(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)';
const ADDRESS = new RegExp(`^${OCTET}(\\.${OCTET}){3}$`, 'u');
const BLOCK = new RegExp(`^${OCTET}(\\.${OCTET}){3}/(3[0-2]|[12]?\\d)$`, 'u');
const LABEL = /^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$/u;
/**
 * Names that end so are read as addresses by some (WHATWG URL, "ends in a number"), or by people.
 */
const NUMBER = /^([\d_-]+|0x[0-9a-f]*)$/u;
const NAME_LENGTH_MAX = 253; // RFC 1035, without the root's dot.

/** @throws AppError `bad_request` saying what is wrong */
export function parseTarget(text: string, where: string): EgressTarget {
  const refuse = (why: string): AppError =>
    new AppError('bad_request', `${where}: ${JSON.stringify(text)} ${why}`);
  if (ADDRESS.test(text)) return { kind: 'network', cidr: `${text}/32` };
  if (BLOCK.test(text)) {
    const [, bits] = text.split('/');
    const network = ipaddr.IPv4.networkAddressFromCIDR(text).toString();
    return { kind: 'network', cidr: `${network}/${bits}` };
  }
  if (text.includes(':')) {
    throw refuse('has a colon; give an IPv4 address, a CIDR block or a domain, without a port');
  }
  if (text.includes('/')) throw refuse('is not a CIDR block of IPv4');
  if (text === '*') throw refuse('matches everything; set default instead');
  const isWildcard = text.startsWith('*.');
  const name = normalizeName(isWildcard ? text.slice(2) : text);
  if (name === undefined) throw refuse('is neither an IPv4 address, a CIDR block nor a domain');
  if (isWildcard) return { kind: 'subdomains', name };
  // A name without a dot could also be the name of a fixed rule in the list of decisions.
  if (!name.includes('.')) throw refuse('is a name without a dot; give the whole domain');
  return { kind: 'domain', name };
}

/** A domain in lower case and in ASCII, without the root's dot; undefined when it is none. */
export function normalizeName(text: string): string | undefined {
  const ascii = toAscii(text.replace(/\.$/u, ''));
  if (ascii === '' || ascii.length > NAME_LENGTH_MAX) return undefined;
  const labels = ascii.split('.');
  if (!labels.every((label) => LABEL.test(label))) return undefined;
  return NUMBER.test(labels.at(-1) ?? '') ? undefined : ascii;
}

/** Only names of other alphabets pass through the rules of IDNA, which also rewrite addresses. */
function toAscii(text: string): string {
  const isAscii = /^[\x21-\x7e]*$/u.test(text);
  const isPunycode = /(^|\.)xn--/iu.test(text);
  return isAscii && !isPunycode ? text.toLowerCase() : domainToASCII(text);
}

/** The target in its normal form, which names its rule. */
export function targetText(target: EgressTarget): string {
  if (target.kind === 'domain') return target.name;
  if (target.kind === 'subdomains') return `*.${target.name}`;
  return target.cidr.endsWith('/32') ? target.cidr.slice(0, -'/32'.length) : target.cidr;
}

/** @param name normalised */
export function matchesName(target: EgressTarget, name: string): boolean {
  if (target.kind === 'domain') return name === target.name;
  return target.kind === 'subdomains' && name.endsWith(`.${target.name}`);
}

/** @param address IPv4, in dotted decimal */
export function matchesAddress(target: EgressTarget, address: string): boolean {
  if (target.kind !== 'network') return false;
  return ipaddr.IPv4.parse(address).match(ipaddr.IPv4.parseCIDR(target.cidr));
}
