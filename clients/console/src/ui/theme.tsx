import { signal } from '@preact/signals';
import type { JSX } from 'preact';
import { text } from '../text.ts';
import { MoonIcon, SunIcon } from './icons.tsx';
import { Button } from './parts.tsx';

type Theme = 'light' | 'dark';
const KEPT = 'berth:theme';

const preferred = (): Theme =>
  matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';

const kept = localStorage.getItem(KEPT);
/** The theme chosen here, else the system's. */
export const theme = signal<Theme>(kept === 'dark' || kept === 'light' ? kept : preferred());

export function applyTheme(): void {
  document.documentElement.dataset['theme'] = theme.value;
}

function change(): void {
  theme.value = theme.value === 'dark' ? 'light' : 'dark';
  localStorage.setItem(KEPT, theme.value);
  applyTheme();
}

export const ThemeButton = (): JSX.Element => (
  <Button kind="quiet" label={theme.value === 'dark' ? text.light : text.dark} onClick={change}>
    {theme.value === 'dark' ? <SunIcon /> : <MoonIcon />}
  </Button>
);
