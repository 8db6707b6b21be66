/**
 * The account's activity and usage, its webhooks, and the hosts.
 *
 * @module account
 */
export { Account, type ListActivityOptions } from '../account.ts';
export { Hosts } from '../hosts.ts';
export { Webhooks } from '../webhooks.ts';
