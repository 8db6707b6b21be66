const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

/** `1.5 GiB`. */
export function bytes(count: number): string {
  const power = count < 1 ? 0 : Math.min(Math.floor(Math.log2(count) / 10), UNITS.length - 1);
  const value = count / 1024 ** power;
  const digits = power === 0 || value >= 100 ? 0 : 1;
  return `${value.toFixed(digits).replace(/\.0$/u, '')} ${UNITS[power] ?? ''}`;
}

const relative = new Intl.RelativeTimeFormat('en', { numeric: 'auto', style: 'short' });
const STEPS: [Intl.RelativeTimeFormatUnit, number][] = [
  ['day', 86_400],
  ['hour', 3600],
  ['minute', 60],
  ['second', 1],
];

/** `5 min. ago`, `in 2 hr.` */
export function ago(time: string): string {
  const away = Math.round((Date.parse(time) - Date.now()) / 1000);
  const [unit, length] = STEPS.find(([, each]) => Math.abs(away) >= each) ?? ['second', 1];
  return relative.format(Math.trunc(away / length), unit);
}

const full = new Intl.DateTimeFormat('en', { dateStyle: 'medium', timeStyle: 'medium' });
export const moment = (time: string): string => full.format(Date.parse(time));

/** `1 h 30 min`. */
export function seconds(count: number): string {
  const parts = [
    [Math.floor(count / 3600), 'h'],
    [Math.floor((count % 3600) / 60), 'min'],
    [count % 60, 's'],
  ] as const;
  const used = parts.filter(([value]) => value > 0).map(([value, unit]) => `${value} ${unit}`);
  return used.join(' ') || '0 s';
}

/** `340 ms`, `2.1 s`. */
export const duration = (ms: number): string =>
  ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;

export const count = (value: number, one: string, many = `${one}s`): string =>
  `${value.toLocaleString('en')} ${value === 1 ? one : many}`;
