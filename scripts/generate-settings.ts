/** Writes docs/settings.md: tables of all settings, from their schemas. */
import { join } from 'node:path';
import { describeSettings } from './describe-settings.ts';
import { replaceFile } from './env-file.ts';
import { paths } from './local-paths.ts';

const INTRO = `# Settings

Environment variables; [operations](operations.md#settings) describes how they are set.
`;

const tables = describeSettings().map(([part, settings]) => {
  const rows = settings.map(
    (setting) =>
      `| \`${setting.name}\` | ${setting.value} | ${setting.default} | ${setting.meaning} |\n`,
  );
  return `\n## ${part}\n\n| Name | Value | Default | Meaning |\n|---|---|---|---|\n${rows.join('')}`;
});
await replaceFile(join(paths.root, 'docs/settings.md'), INTRO + tables.join(''));
