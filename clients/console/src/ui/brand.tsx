import type { JSX } from 'preact';
import { linkTo } from '../lib/router.ts';

export const Brand = (): JSX.Element => (
  <a class="brand" href={linkTo([])}>
    <svg viewBox="0 0 24 24" aria-hidden="true">
      <rect width="24" height="24" rx="6" fill="var(--accent)" />
      <path
        d="M5 14.500h14l-2 4.500H7zM8 14V9h5v5M15.500 14V6"
        fill="none"
        stroke="var(--on-accent)"
        stroke-width="1.700"
        stroke-linejoin="round"
        stroke-linecap="round"
      />
    </svg>
    Berth
  </a>
);
