/** Text that is HTML already. */
export class Html {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }

  toString(): string {
    return this.text;
  }
}

type Part = Html | string | number | readonly Part[];

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

export const escapeHtml = (text: string): string =>
  text.replaceAll(/[&<>"']/gu, (character) => ENTITIES[character] ?? '');

function render(part: Part): string {
  if (part instanceof Html) return part.text;
  return typeof part === 'object' ? part.map(render).join('') : escapeHtml(String(part));
}

/** Template tag: whatever is put in is escaped, unless it is {@link Html}; lists are joined. */
export const html = (texts: TemplateStringsArray, ...parts: readonly Part[]): Html =>
  new Html(
    texts.map((text, i) => `${text}${i < parts.length ? render(parts[i] ?? '') : ''}`).join(''),
  );
