/* The table and the diagram in docs/sandboxes.md must match the lifecycle table in the code. */
import { readFile } from 'node:fs/promises';
import test from 'ava';
import {
  type SandboxAction,
  sandboxActions,
  type SandboxState,
  sandboxStates,
  sandboxTransitions,
  verdictOn,
} from '../../shared/sandbox-lifecycle.ts';

const document = await readFile(new URL('../../docs/sandboxes.md', import.meta.url), 'utf8');

function cell(state: SandboxState, action: SandboxAction): string {
  const verdict = verdictOn(state, action);
  switch (verdict.kind) {
    case 'begin':
      return `→ ${verdict.to}`;
    case 'allow':
      return 'done';
    case 'unchanged':
      return 'unchanged';
    case 'refuse':
      return `\`${verdict.code}\``;
  }
}

const row = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`;
const table = [
  row(['', ...sandboxActions]),
  row(['', ...sandboxActions].map(() => '---')),
  ...sandboxStates.map((state) =>
    row([`**${state}**`, ...sandboxActions.map((action) => cell(state, action))]),
  ),
].join('\n');

const diagram = [
  '```mermaid',
  'stateDiagram-v2',
  '  [*] --> pending_start',
  '  [*] --> pending_image',
  ...sandboxStates.flatMap((from) => sandboxTransitions[from].map((to) => `  ${from} --> ${to}`)),
  '```',
].join('\n');

test('the document shows the verdict on each action in each state', (t) => {
  t.true(document.includes(table), table);
});

test('the document draws every transition and no other', (t) => {
  t.true(document.includes(diagram), diagram);
});
