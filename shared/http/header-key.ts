/**
 * A header's name in the form in which two spellings are the same header to some server. Those that
 * hand headers on as variables (RFC 3875, section 4.1.18) write `_` for each hyphen, and lighttpd
 * for every character but letters and digits.
 */
export const headerKey = (name: string): string =>
  name.toLowerCase().replaceAll(/[^a-z0-9]/gu, '-');
