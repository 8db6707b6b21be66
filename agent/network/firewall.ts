/**
 * Loaded in one go, so there is no moment between the old rules and the new. The table is emptied, not
 * deleted: deleting chains waits for the kernel even when there are none yet, four times as long as
 * the rest takes.
 */
const table = (family: string, hooks: readonly string[]): string =>
  [
    `table ${family} berth`,
    `flush table ${family} berth`,
    `table ${family} berth {`,
    ...hooks.flatMap((hook) => [
      `  chain ${hook} {`,
      `    type filter hook ${hook} priority filter; policy drop;`,
      '  }',
    ]),
    '}',
    '',
  ].join('\n');

/**
 * The rules of a slot from which nothing comes out and which answers nothing, not even who has its
 * address: input for `nft -f` in the slot's namespace. May be loaded over itself.
 */
export const denyAll = (): string =>
  table('inet', ['input', 'forward', 'output']) + table('arp', ['input', 'output']);
