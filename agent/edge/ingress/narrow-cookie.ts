const DOMAIN = /^\.?(?<domain>[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)\.?$/u;

/**
 * Takes the Domain from a guest's cookie if it names the zone or a domain above it: browsers would
 * send the cookie to the ports of all other sandboxes, too. Without one, it is for its own hostname
 * alone.
 * @param cookie the value of a Set-Cookie header
 * @param zone in lower case
 */
export function narrowCookie(cookie: string, zone: string): string {
  const [pair = '', ...attributes] = cookie.split(';');
  return [pair, ...attributes.filter((attribute) => !isTooWide(attribute, zone))].join(';');
}

function isTooWide(attribute: string, zone: string): boolean {
  const [name = '', value = ''] = attribute.split('=');
  if (name.trim().toLowerCase() !== 'domain') return false;
  const domain = DOMAIN.exec(value.trim().toLowerCase())?.groups?.['domain'];
  // Browsers decode other spellings, each in its own way.
  return domain === undefined || `.${zone}`.endsWith(`.${domain}`);
}
