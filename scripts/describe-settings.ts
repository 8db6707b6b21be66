import type { TObject } from 'typebox';
import { AgentSettings } from '../shared/settings/agent-settings.ts';
import { CommonSettings } from '../shared/settings/cluster-settings.ts';
import { ControlSettings } from '../shared/settings/control-settings.ts';
import { ScriptSettings } from '../shared/settings/known-settings.ts';
import { type Setting, settingsOf } from '../shared/settings/read-settings.ts';
import { GiB, KiB, MiB, TiB } from '../shared/units.ts';

/** A setting in words, as Markdown of docs/. */
export interface DescribedSetting {
  readonly name: string;
  /** Form, or bounds with their unit. */
  readonly value: string;
  readonly default: string;
  readonly meaning: string;
}

const PARTS: Readonly<Record<string, TObject>> = {
  'Control and agent': CommonSettings,
  Control: ControlSettings,
  Agent: AgentSettings,
  Scripts: ScriptSettings,
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

/** @returns the setting's allowed values, in words */
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

/** All settings, by the part that reads them. */
export const describeSettings = (): [part: string, settings: DescribedSetting[]][] =>
  Object.entries(PARTS).map(([part, schema]) => {
    const required = new Set(schema.required as readonly string[] | undefined);
    const settings = settingsOf(schema).map(([name, setting]) => ({
      name,
      value: valueOf(setting),
      default: defaultOf(setting, required.has(name)),
      meaning: setting.description,
    }));
    return [part, settings];
  });
