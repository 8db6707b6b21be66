/* The console without a pointer: where the focus is, and where the keyboard leads it. */
import type { ConsolePage } from './console-page.ts';

/** The element that has the focus, as a person notices it. */
export interface Focus {
  /** Its name for assistive technology; of none, the name of its tag. */
  readonly name: string;
  /** On the screen, with nothing over it, and marked as that which has the focus. */
  readonly isVisible: boolean;
}

const STOPS_MAX = 80;

/**
 * The focus as it is seen. A field that is not drawn is seen as its label, and an editor or a
 * terminal as its frame, where a caret shows the focus.
 */
const FOCUS = `(() => {
  const at = document.activeElement;
  if (at === document.body) return { name: 'body', isVisible: false };
  const label = at.labels?.[0];
  const name = at.getAttribute('aria-label') ?? (label?.textContent || at.textContent);
  const hasCaret = at.matches('.cm-content, .xterm-helper-textarea');
  const seen = hasCaret ? at.closest('.editor, .terminal') : at.matches('.hidden') ? label : at;
  const { x, y, width, height } = seen.getBoundingClientRect();
  const top = document.elementFromPoint(x + Math.min(width / 2, 200), y + height / 2);
  const { outlineStyle, outlineWidth } = getComputedStyle(seen);
  const isMarked = hasCaret || (outlineStyle !== 'none' && parseFloat(outlineWidth) >= 2);
  return { name: name.trim().slice(0, 60) || at.tagName.toLowerCase(),
    isVisible: isMarked && (top === seen || seen.contains(top)) };
})()`;

export const focusOf = async ({ page }: ConsolePage): Promise<Focus> =>
  (await page.evaluate(FOCUS)) as Focus;

/**
 * Presses Tab until something has the focus.
 * @returns the names of what had it on the way
 * @throws Error when it is never reached, or when somewhere on the way the focus is not seen
 */
export async function tabTo(page: ConsolePage, name: string, held?: 'Shift'): Promise<string[]> {
  const passed: string[] = [];
  while (passed.length < STOPS_MAX) {
    await page.key('Tab', held);
    const focus = await focusOf(page);
    passed.push(focus.name);
    if (focus.name === 'body') continue; // The browser's own part of the window.
    if (!focus.isVisible) throw new Error(`the focus is not seen at: ${passed.join(', ')}`);
    if (focus.name === name) return passed;
  }
  throw new Error(`Tab does not lead to ${name}, but to: ${passed.join(', ')}`);
}

/** Goes to something by Tab, and presses Enter there. @returns what had the focus on the way */
export async function chooseBy(page: ConsolePage, name: string, held?: 'Shift'): Promise<string[]> {
  const passed = await tabTo(page, name, held);
  await page.type('\n');
  return passed;
}
