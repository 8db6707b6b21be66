/*
 * Which terminals were opened in which sandbox, so that they are there again after a reload. Only
 * ids of processes are kept, which are worth nothing without a session.
 */
const KEPT = 'berth:terminals:';

export interface KeptTerminal {
  readonly id: string;
  readonly title: string;
}

const isKept = (value: unknown): value is KeptTerminal =>
  typeof value === 'object' &&
  value !== null &&
  typeof Reflect.get(value, 'id') === 'string' &&
  typeof Reflect.get(value, 'title') === 'string';

export function keptTerminals(sandboxId: string): KeptTerminal[] {
  try {
    const value: unknown = JSON.parse(localStorage.getItem(KEPT + sandboxId) ?? '[]');
    return Array.isArray(value) ? value.filter(isKept) : [];
  } catch {
    return [];
  }
}

export function keepTerminals(sandboxId: string, terminals: readonly KeptTerminal[]): void {
  if (terminals.length === 0) localStorage.removeItem(KEPT + sandboxId);
  else localStorage.setItem(KEPT + sandboxId, JSON.stringify(terminals));
}
