import { type Html, html } from './html.ts';

/** An entry of the navigation. */
export interface NavigationGroup {
  readonly title: string;
  readonly entries: readonly { readonly url: string; readonly title: string }[];
  /** Shown only once it is opened. */
  readonly isLong?: boolean;
}

/** URLs of the files that pages load. */
export interface PageAssets {
  readonly styles: string;
  readonly script: string;
  readonly index: string;
}

export interface Page {
  readonly url: string;
  readonly title: string;
  readonly body: Html;
}

const group = ({ title, entries, isLong = false }: NavigationGroup, current: string): Html => {
  const list = html`<ul>
    ${entries.map(
      (entry) =>
        html`<li>
          <a href="${entry.url}" ${entry.url === current ? html` aria-current="page"` : ''}
            >${entry.title}</a
          >
        </li> `,
    )}
  </ul>`;
  const isOpen = !isLong || entries.some(({ url }) => url === current);
  return html`<details${isOpen ? html` open` : ''}><summary>${title}</summary>${list}</details>
`;
};

/** A whole page. Nothing of it comes from elsewhere, and no script or style is written into it. */
export const layOut = (
  { url, title, body }: Page,
  navigation: readonly NavigationGroup[],
  { styles, script, index }: PageAssets,
): string =>
  html`<!doctype html>
    <html lang="en">
      <head>
        <meta charset="utf-8" />
        <meta name="viewport" content="width=device-width, initial-scale=1" />
        <meta name="color-scheme" content="light dark" />
        <title>${title} – Berth</title>
        <link rel="icon" href="data:," />
        <link rel="stylesheet" href="${styles}" />
        <script type="module" src="${script}"></script>
      </head>
      <body data-index="${index}">
        <a class="skip" href="#main">Skip to the text</a>
        <header>
          <a class="name" href="/docs">Berth</a>
          <form role="search" id="search">
            <input
              type="search"
              aria-label="Search the documentation"
              placeholder="Search"
              autocomplete="off"
            />
            <ol id="found" hidden aria-live="polite"></ol>
          </form>
          <button type="button" id="menu" aria-expanded="false" aria-controls="navigation">
            Menu
          </button>
        </header>
        <nav id="navigation" aria-label="Pages">
          ${navigation.map((entries) => group(entries, url))}
        </nav>
        <main id="main">${body}</main>
      </body>
    </html> `.text;
