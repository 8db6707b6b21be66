/* The browser's part of the documentation: search, the menu of narrow screens, trials. */
import MiniSearch from 'minisearch';

const FOUND_MAX = 12;
const search = document.querySelector('#search');
const input = search.querySelector('input');
const found = document.querySelector('#found');

/** Ranks decisions, which only say why, below guides and reference, which say how things are. */
const boostDocument = (_id, _term, { url }) => (url.startsWith('/docs/decisions/') ? 0.3 : 1);

let loading;

/** The index is fetched when somebody begins to search. */
const loadIndex = () =>
  (loading ??= fetch(document.body.dataset.index)
    .then((response) => response.text())
    .then((text) =>
      MiniSearch.loadJSON(text, {
        fields: ['title', 'page', 'text'],
        storeFields: ['title', 'page', 'url'],
      }),
    ));

const entryOf = ({ url, title, page }) => {
  const item = document.createElement('li');
  const link = document.createElement('a');
  const place = document.createElement('small');
  link.href = url;
  link.textContent = title;
  place.textContent = page === title ? '' : page;
  link.append(place);
  item.append(link);
  return item;
};

const show = async () => {
  const index = await loadIndex();
  const words = input.value.trim();
  const options = {
    prefix: true,
    fuzzy: 0.15,
    boost: { title: 3, page: 2 },
    combineWith: 'AND',
    boostDocument,
  };
  const entries = words === '' ? [] : index.search(words, options).slice(0, FOUND_MAX).map(entryOf);
  if (words !== '' && entries.length === 0) {
    const nothing = document.createElement('li');
    nothing.textContent = 'Nothing was found.';
    entries.push(nothing);
  }
  found.replaceChildren(...entries);
  found.hidden = entries.length === 0;
};

input.addEventListener('focus', loadIndex);
input.addEventListener('input', show);
search.addEventListener('submit', (event) => {
  event.preventDefault();
  found.querySelector('a')?.click();
});
found.addEventListener('click', () => {
  found.hidden = true;
});
document.addEventListener('keydown', ({ key }) => {
  if (key === 'Escape') found.hidden = true;
});
document.addEventListener('click', ({ target }) => {
  if (!search.contains(target)) found.hidden = true;
});

const menu = document.querySelector('#menu');
const navigation = document.querySelector('#navigation');
menu.addEventListener('click', () => {
  const isOpen = navigation.classList.toggle('open');
  menu.setAttribute('aria-expanded', String(isOpen));
});

/** Sends what a form of the reference describes, to this origin and nowhere else. */
const send = async (form) => {
  const values = new FormData(form);
  const path = form.dataset.path.replaceAll(/\{(\w+)\}/gu, (_, name) =>
    encodeURIComponent(values.get(`path.${name}`)),
  );
  const query = new URLSearchParams();
  for (const [name, value] of values) {
    if (name.startsWith('query.') && value !== '') query.set(name.slice('query.'.length), value);
  }
  const body = values.get('body');
  const key = values.get('key');
  const response = await fetch(`${path}${query.size === 0 ? '' : `?${query}`}`, {
    method: form.dataset.method,
    headers: {
      ...(key ? { authorization: `Bearer ${key}` } : {}),
      ...(body ? { 'content-type': 'application/json' } : {}),
    },
    ...(body ? { body } : {}),
  });
  const isJson = response.headers.get('content-type')?.startsWith('application/json');
  const text = isJson ? JSON.stringify(await response.json(), null, 2) : await response.text();
  return `${response.status} ${response.statusText}\n\n${text}`;
};

for (const form of document.querySelectorAll('form.trial')) {
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    const output = form.querySelector('output');
    output.textContent = '…';
    output.textContent = await send(form).catch(String);
  });
}
