import { computed, signal } from '@preact/signals';

const BASE = '/console';

const here = (): string => `${location.pathname}${location.search}`;
const address = signal(here());
addEventListener('popstate', () => {
  address.value = here();
});

/** The path below `/console`, without slashes at its ends. */
export const path = computed(() => {
  const [pathname = ''] = address.value.split('?');
  return pathname.slice(BASE.length).replaceAll(/^\/+|\/+$/gu, '');
});

export const query = computed(() => new URLSearchParams(address.value.split('?')[1] ?? ''));

/** The address of a page of the console. Segments are escaped. */
export function linkTo(
  segments: readonly string[],
  parameters: Record<string, string> = {},
): string {
  const joined = [BASE, ...segments.map(encodeURIComponent)].join('/');
  const search = new URLSearchParams(parameters).toString();
  return search === '' ? joined : `${joined}?${search}`;
}

export function go(href: string, { replace = false } = {}): void {
  if (href === here()) return;
  history[replace ? 'replaceState' : 'pushState'](null, '', href);
  address.value = here();
  if (!replace) scrollTo(0, 0);
}

/** Follows links of the console without loading the page again. */
export function followLinks(event: MouseEvent): void {
  const isPlain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey;
  const link = event.target instanceof Element ? event.target.closest('a') : null;
  if (!isPlain || link === null || link.target !== '' || link.hasAttribute('download')) return;
  if (link.origin !== location.origin || !`${link.pathname}/`.startsWith(`${BASE}/`)) return;
  event.preventDefault();
  go(`${link.pathname}${link.search}`);
}
