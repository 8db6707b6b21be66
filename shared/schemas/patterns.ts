/*
 * Patterns of the API's description for texts that services read themselves, because they can say
 * better than a pattern what is wrong. JSON Schema counts characters where some limits are bytes;
 * the descriptions of the fields say so. test/system/described-requests.test.ts shows that patterns
 * and services agree.
 */

const whole = (source: string): string => `^(?:${source})$`;

/** Neither empty nor `.` nor `..`. */
const segment = (length: string): string => String.raw`(?!\.{1,2}(?:/|$))[^/\u0000]${length}`;
const NAME = segment('{1,255}');

/** A path of plain names without a slash at its beginning or end. */
export const RELATIVE_PATH = whole(`${NAME}(?:/${NAME})*`);
export const OPTIONAL_RELATIVE_PATH = whole(`(?:${NAME}(?:/${NAME})*)?`);
/** The same with slashes around it, which do not count. */
export const DIRECTORY_PATH = whole(`/*(?:${NAME}(?:/${NAME})*)?/*`);
export const FILE_KEY = whole(`/*${segment('+')}(?:/${segment('+')})*`);

/** An absolute path that lies in none of the trees, and is no directory of the system itself. */
export const mountPath = (trees: readonly string[], directories: readonly string[]): string => {
  const closed = trees.map((tree) => `(?!${tree.replaceAll('.', String.raw`\.`)}(?:/|$))`).join('');
  const covered = `(?!(?:${directories.join('|')})$)`;
  return `^${closed}${covered}(?:/${NAME})+$`;
};

export const WITHOUT_NUL = String.raw`^[^\u0000]*$`;
/** The name of a variable of the environment. */
export const VARIABLE_NAME = String.raw`^[^=\u0000]+$`;
export const VISIBLE_ASCII = '^[!-~]+$';

const OCTET = String.raw`(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)`;
const IPV4 = String.raw`${OCTET}(?:\.${OCTET}){3}`;
const HEX = '[0-9a-fA-F]{1,4}';
const IPV6 = [
  `(?:${HEX}:){7}${HEX}`,
  `(?:${HEX}:){1,7}:`,
  ...[1, 2, 3, 4, 5, 6].map((after) => `(?:${HEX}:){1,${7 - after}}(?::${HEX}){1,${after}}`),
  `:(?::${HEX}){1,7}`,
  '::',
  `(?:${HEX}:){6}${IPV4}`,
  `::(?:[fF]{4}:)?${IPV4}`,
].join('|');
const BITS_4 = String.raw`(?:3[0-2]|[12]?\d)`;
const BITS_6 = String.raw`(?:12[0-8]|1[01]\d|[1-9]?\d)`;

/** An address, or a block of addresses. */
export const ADDRESSES = whole(`${IPV4}(?:/${BITS_4})?|(?:${IPV6})(?:/${BITS_6})?`);
export const IPV4_ADDRESSES = whole(`${IPV4}(?:/${BITS_4})?`);

const LABEL = '[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?';
/** Names that end in a number would be addresses to some. */
const LAST_LABEL = String.raw`(?!(?:[\d_-]+|0[xX][0-9a-fA-F]*)\.?$)${LABEL}`;
const DOMAIN = String.raw`(?:${LABEL}\.)+${LAST_LABEL}\.?`;
/**
 * Domains in other alphabets, or in the ASCII form of these, which has rules that no pattern can
 * say.
 */
const OTHER_DOMAIN = String.raw`(?=[^:/\u0000-\u0020]*(?:[^\u0000-\u007f]|[xX][nN]--))[^:/\u0000-\u0020]+`;

/** The target of a network rule. */
export const EGRESS_TARGET = whole(
  String.raw`${IPV4}(?:/${BITS_4})?|\*\.(?:${LABEL}\.)*${LAST_LABEL}\.?|${DOMAIN}|${OTHER_DOMAIN}`,
);
export const DRAIN_PATTERN = '^[A-Za-z0-9_.*-]+$';
/** RFC 9110, 5.6.2. */
export const HEADER_NAME = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$";
/** RFC 9110, 5.5, without obs-text. */
export const HEADER_VALUE = String.raw`^[!-~](?:[\t -~]*[!-~])?$`;
/** The host of a URL. Names of other alphabets have rules that no pattern can say. */
const HOST_OF_URL = String.raw`(?!(?:[^:/?]*\.)?(?:\d+|0[xX][0-9a-fA-F]*)\.?(?:[:/?]|$))[^\u0000-,./:-@\[-^\u0060{-\u007f][^\u0000-,/:-@\[-^\u0060{-\u007f]*|${IPV4}(?=[:/?]|$)|\[(?:${IPV6})\]`;
const PORT_NUMBER = String.raw`(?:[1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])`;
/** Without credentials and fragment. */
export const HTTPS_URL = String.raw`^https://(?:${HOST_OF_URL})(?::${PORT_NUMBER})?(?:[/?][^\s#]*)?$`;

const HOST_OF_ORIGIN = String.raw`(?:[a-z0-9_-]+\.)*(?!(?:\d+|0x[0-9a-f]*)(?:$|:))[a-z0-9_-]+|${IPV4}|\[[0-9a-f:]+\]`;
/**
 * An origin as browsers write it, without the port that its scheme has by itself; or all of them.
 */
export const ORIGIN = whole(
  String.raw`\*|(?:http://(?:${HOST_OF_ORIGIN})(?!:80$)|https://(?:${HOST_OF_ORIGIN})(?!:443$))(?::${PORT_NUMBER})?`,
);

const TERM = String.raw`(?:\d{1,15}(?:\.\d{0,9})?|\.\d{1,9})(?:ns|us|µs|ms|s|m|h)`;
export const DURATION = whole(`(?:${TERM})+`);

const HOST_LABEL = '[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?';
const PORT = String.raw`:\d{1,5}`;
const REGISTRY = String.raw`${HOST_LABEL}(?:\.${HOST_LABEL})+(?:${PORT})?|${HOST_LABEL}${PORT}|localhost`;
const COMPONENT = String.raw`[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*`;
const COMPONENT_OF_DOCKER = '[a-z0-9]+(?:(?:_|__|-+)[a-z0-9]+)*';
const REPOSITORY = [
  `(?:${REGISTRY})/${COMPONENT}(?:/${COMPONENT})*`,
  COMPONENT,
  `${COMPONENT_OF_DOCKER}(?:/${COMPONENT})+`,
].join('|');

/** `[registry/]repository[:tag][@digest]`. */
export const IMAGE_REFERENCE = String.raw`^(?:${REPOSITORY})(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?$`;
