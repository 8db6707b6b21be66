import type { JSX } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { session, signOut } from './lib/berth.ts';
import { linkTo, path } from './lib/router.ts';
import { DiskPage } from './pages/disk.tsx';
import { DisksPage } from './pages/disks.tsx';
import { ImagesPage } from './pages/images.tsx';
import { KeysPage } from './pages/keys.tsx';
import { SandboxPage } from './pages/sandbox.tsx';
import { SandboxesPage } from './pages/sandboxes.tsx';
import { SignInPage } from './pages/sign-in.tsx';
import { SnapshotsPage } from './pages/snapshots.tsx';
import { text } from './text.ts';
import { DiskIcon, ExitIcon, ImageIcon, KeyIcon, SandboxIcon, SnapshotIcon } from './ui/icons.tsx';
import { Brand } from './ui/brand.tsx';
import { Button, Empty, Notices, Page } from './ui/parts.tsx';
import { ThemeButton } from './ui/theme.tsx';

const SECTIONS = [
  ['disks', text.disks.title, DiskIcon],
  ['sandboxes', text.sandboxes.title, SandboxIcon],
  ['snapshots', text.snapshots.title, SnapshotIcon],
  ['images', text.images.title, ImageIcon],
  ['keys', text.keys.title, KeyIcon],
] as const;

const NotFound = (): JSX.Element => (
  <Page title={text.notFound.title}>
    <Empty title={text.notFound.text}>
      <a href={linkTo(['disks'])}>{text.notFound.back}</a>
    </Empty>
  </Page>
);

function CurrentPage(): JSX.Element {
  const [section = '', id = '', view = ''] = path.value.split('/').map(decodeURIComponent);
  if (section === '' || (section === 'disks' && id === '')) return <DisksPage />;
  if (section === 'disks') return <DiskPage key={id} id={id} view={view} />;
  if (section === 'sandboxes' && id === '') return <SandboxesPage />;
  if (section === 'sandboxes') return <SandboxPage key={id} id={id} view={view} />;
  if (section === 'snapshots') return <SnapshotsPage />;
  if (section === 'images') return <ImagesPage />;
  if (section === 'keys') return <KeysPage />;
  return <NotFound />;
}

function Side(): JSX.Element {
  const [section = ''] = path.value.split('/');
  const current = section === '' ? 'disks' : section;
  const { organization = '', region = '' } = session.value ?? {};
  return (
    <header class="side">
      <Brand />
      <nav aria-label={text.sections}>
        {SECTIONS.map(([name, label, Icon]) => (
          <a key={name} href={linkTo([name])} aria-current={name === current ? 'page' : undefined}>
            <Icon />
            {label}
          </a>
        ))}
      </nav>
      <div class="account">
        <div>
          <div class="account-name" title={organization}>
            {organization}
          </div>
          <small class="account-region">{region}</small>
        </div>
        <div class="account-buttons">
          <ThemeButton />
          <Button kind="quiet" label={text.signOut} onClick={signOut}>
            <ExitIcon />
          </Button>
        </div>
      </div>
    </header>
  );
}

function Frame(): JSX.Element {
  const main = useRef<HTMLElement>(null);
  const isFirst = useRef(true);
  const place = path.value;
  // Screen readers and keyboards go on at the new page.
  useEffect(() => {
    if (!isFirst.current) main.current?.focus({ preventScroll: true });
    isFirst.current = false;
  }, [place]);
  return (
    <div class="frame">
      <a class="skip" href="#main">
        {text.skip}
      </a>
      <Side />
      <main id="main" tabIndex={-1} ref={main}>
        <CurrentPage />
      </main>
    </div>
  );
}

/** Nothing is shown until the session is known, which takes one short request. */
export function App(): JSX.Element {
  const known = session.value;
  return (
    <>
      {known === undefined ? null : known === null ? <SignInPage /> : <Frame />}
      <Notices />
    </>
  );
}
