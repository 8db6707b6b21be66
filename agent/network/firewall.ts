/**
 * One table whose chains drop everything. nft loads its input as one transaction, so no packet
 * meets half of the rules. The table is flushed rather than deleted: deleting chains waits for the
 * kernel even when there are none yet, and takes four times as long as everything else.
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
 * Rules that let nothing into or out of a slot, ARP included: input for `nft -f` in the slot's
 * namespace. Idempotent.
 */
export const denyAll = (): string =>
  table('inet', ['input', 'forward', 'output']) + table('arp', ['input', 'output']);
