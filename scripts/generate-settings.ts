/**
 * Makes the tables of settings in docs/operations.md; with --check, says whether they are current.
 */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { TObject } from 'typebox';
import { AgentSettings } from '../shared/settings/agent-settings.ts';
import { CommonSettings } from '../shared/settings/cluster-settings.ts';
import { ControlSettings } from '../shared/settings/control-settings.ts';
import { ScriptSettings } from '../shared/settings/known-settings.ts';
import { type Setting, settingsOf } from '../shared/settings/read-settings.ts';
import { GiB, KiB, MiB, TiB } from '../shared/units.ts';
import { paths } from './local-paths.ts';

const TABLES: Readonly<Record<string, TObject>> = {
  common: CommonSettings,
  control: ControlSettings,
  agent: AgentSettings,
  scripts: ScriptSettings,
};

const UNITS = [
  [TiB, 'TiB'],
  [GiB, 'GiB'],
  [MiB, 'MiB'],
  [KiB, 'KiB'],
] as const;

function formatNumber(value: number, unit: Setting['unit']): string {
  if (unit !== 'bytes') return String(value);
  const [size, name] = UNITS.find(([each]) => value >= each && value % each === 0) ?? [1, 'B'];
  return value === 0 ? '0' : `${value / size} ${name}`;
}

/** The setting's allowed values, in words. */
function valueOf(setting: Setting): string {
  const { unit, minimum, maximum, form } = setting;
  if (setting.enum !== undefined) return setting.enum.map((each) => `\`${each}\``).join(', ');
  if (setting.type === 'boolean') return '`true`, `false`';
  if (setting.type !== 'integer') return form ?? 'text';
  if (form !== undefined || minimum === undefined || maximum === undefined)
    return form ?? 'integer';
  const bounds = `${formatNumber(minimum, unit)} to ${formatNumber(maximum, unit)}`;
  return unit === undefined || unit === 'bytes' ? bounds : `${bounds} ${unit}`;
}

function defaultOf(setting: Setting, isRequired: boolean): string {
  const { unit, setUp, fallback } = setting;
  const value = setting.default;
  const list = Array.isArray(value) ? value.map((item) => `\`${String(item)}\``).join(', ') : '';
  const texts = [
    fallback ?? (Array.isArray(value) ? list || 'none' : undefined),
    typeof value === 'number' ? formatNumber(value, unit) : undefined,
    typeof value === 'string' || typeof value === 'boolean' ? `\`${String(value)}\`` : undefined,
  ];
  const own = texts.find((text) => text !== undefined);
  const isMissing = isRequired && (value === undefined || (setting.minItems ?? 0) > 0);
  const said = isMissing ? 'required' : (own ?? 'none');
  if (setUp === undefined) return said;
  return `${said}; ${setUp.startsWith('made') ? setUp : `set-up: ${setUp}`}`;
}

function tableOf(schema: TObject): string {
  const required = new Set(schema.required as readonly string[] | undefined);
  const rows = settingsOf(schema).map(([name, setting]) => {
    const cells = [valueOf(setting), defaultOf(setting, required.has(name)), setting.description];
    return `| \`${name}\` | ${cells.join(' | ')} |`;
  });
  return ['| Name | Value | Default | Meaning |', '|---|---|---|---|', ...rows].join('\n');
}

const target = join(paths.root, 'docs/operations.md');
const text = await readFile(target, 'utf8');
const generated = Object.entries(TABLES).reduce((document, [name, schema]) => {
  const [begin, end] = [`<!-- settings: ${name} -->\n`, '\n<!-- end of settings -->'];
  const from = document.indexOf(begin);
  const to = document.indexOf(end, from);
  if (from < 0 || to < 0) throw new Error(`docs/operations.md has no place for settings: ${name}`);
  return document.slice(0, from) + begin + tableOf(schema) + document.slice(to);
}, text);

if (!process.argv.includes('--check')) await writeFile(target, generated);
else if (text !== generated) {
  console.error('the settings in docs/operations.md are not current: run npm run generate');
  process.exitCode = 1;
}
