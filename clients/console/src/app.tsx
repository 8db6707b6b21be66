import type { JSX } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { isAllowed, session, signOut } from './lib/berth.ts';
import { linkTo, path } from './lib/router.ts';
import { ActivityPage } from './pages/activity.tsx';
import { DiskPage } from './pages/disk.tsx';
import { DisksPage } from './pages/disks.tsx';
import { HostsPage } from './pages/hosts.tsx';
import { ImagesPage } from './pages/images.tsx';
import { KeysPage } from './pages/keys.tsx';
import { SandboxPage } from './pages/sandbox.tsx';
import { SandboxesPage } from './pages/sandboxes.tsx';
import { SignInPage } from './pages/sign-in.tsx';
import { SnapshotsPage } from './pages/snapshots.tsx';
import { UsagePage } from './pages/usage.tsx';
import { WebhookPage, WebhooksPage } from './pages/webhooks.tsx';
import { text } from './text.ts';
import {
  ActivityIcon,
  DiskIcon,
  ExitIcon,
  HostIcon,
  ImageIcon,
  KeyIcon,
  SandboxIcon,
  SnapshotIcon,
  UsageIcon,
  WebhookIcon,
} from './ui/icons.tsx';
import { Brand } from './ui/brand.tsx';
import { Button, Empty, Notices, Page } from './ui/parts.tsx';
import { ThemeButton } from './ui/theme.tsx';

/** The pages, and the scope that a key needs for them. */
const SECTIONS = [
  ['disks', text.disks.title, DiskIcon, 'read'],
  ['sandboxes', text.sandboxes.title, SandboxIcon, 'read'],
  ['snapshots', text.snapshots.title, SnapshotIcon, 'read'],
  ['images', text.images.title, ImageIcon, 'read'],
  ['activity', text.activity.title, ActivityIcon, 'read'],
  ['usage', text.usage.title, UsageIcon, 'read'],
  ['webhooks', text.webhooks.title, WebhookIcon, 'admin'],
  ['keys', text.keys.title, KeyIcon, 'admin'],
  ['hosts', text.hosts.title, HostIcon, 'operator'],
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
  if (section === 'activity') return <ActivityPage />;
  if (section === 'usage') return <UsagePage />;
  if (section === 'webhooks' && id === '') return <WebhooksPage />;
  if (section === 'webhooks') return <WebhookPage key={id} id={id} />;
  if (section === 'keys') return <KeysPage />;
  if (section === 'hosts') return <HostsPage />;
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
        {SECTIONS.filter(([, , , scope]) => isAllowed(scope)).map(([name, label, Icon]) => (
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
