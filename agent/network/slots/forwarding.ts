import { readFile, writeFile } from 'node:fs/promises';
import { parseJson } from '../../../shared/json.ts';
import { NFT, runWithin } from './nft.ts';
import type { RouterPlan } from './router-plan.ts';
import { FORWARDING_WAS_OFF } from './router-rules.ts';

/*
 * Whether the host forwards packets is one setting for all agents of a machine. The agent that
 * turns it on marks its own table; later agents take the mark over, and the last one to remove its
 * table turns the setting off. The marks are in the kernel, so that they last exactly as long as
 * it.
 */

const SETTING = '/proc/sys/net/ipv4/ip_forward';
const TABLE = /^berth_[0-9a-f]+$/u;

interface Listing {
  readonly nftables: readonly {
    readonly chain?: { readonly table: string; readonly name: string };
  }[];
}

/** The tables that agents of this machine have, and which of them have the mark. */
async function agentTables(): Promise<{ all: Set<string>; marked: Set<string> }> {
  const text = await runWithin(undefined, [NFT, '--json', 'list', 'chains', 'inet']);
  const { nftables } = parseJson(text) as Listing;
  const chains = nftables.flatMap(({ chain }) => (chain === undefined ? [] : [chain]));
  const ours = chains.filter(({ table }) => TABLE.test(table));
  const marked = ours.filter(({ name }) => name === FORWARDING_WAS_OFF);
  return {
    all: new Set(ours.map(({ table }) => table)),
    marked: new Set(marked.map(({ table }) => table)),
  };
}

const isForwarding = async (): Promise<boolean> => (await readFile(SETTING, 'utf8')).trim() === '1';

/** Whether the host forwards nothing without its agents. */
export async function wasForwardingOff(): Promise<boolean> {
  return !(await isForwarding()) || (await agentTables()).marked.size > 0;
}

/** Call it after the host's table is loaded, with the mark if {@link wasForwardingOff}. */
export async function turnForwardingOn(): Promise<void> {
  if (!(await isForwarding())) await writeFile(SETTING, '1');
}

/**
 * Turns forwarding off where no other agent needs it, and removes the host's table. Idempotent. The
 * setting is looked at again afterwards, because two agents may end at the same time.
 */
export async function removeHostTable({ hostTable }: RouterPlan): Promise<void> {
  const { all, marked } = await agentTables();
  const isMarked = marked.has(hostTable);
  if (isMarked && all.size === 1) await writeFile(SETTING, '0');
  if (!all.has(hostTable)) return;
  await runWithin(undefined, [NFT, 'delete', 'table', 'inet', hostTable]);
  if (isMarked && (await agentTables()).all.size === 0) await writeFile(SETTING, '0');
}
