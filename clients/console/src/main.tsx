import { render } from 'preact';
import { App } from './app.tsx';
import { openSession } from './lib/berth.ts';
import { attempt } from './lib/notices.ts';
import { followLinks } from './lib/router.ts';
import '@xterm/xterm/css/xterm.css'; // Here, since the bundler loads no styles later.
import './styles.css';
import { applyTheme } from './ui/theme.tsx';

applyTheme();
const root = document.querySelector('#app');
if (root !== null) render(<App />, root);
document.addEventListener('click', followLinks);
attempt(openSession);
