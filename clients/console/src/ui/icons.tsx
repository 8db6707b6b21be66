import type { ComponentChildren, JSX } from 'preact';

const icon = (children: ComponentChildren) => (): JSX.Element => (
  <svg
    class="icon"
    viewBox="0 0 24 24"
    fill="none"
    stroke="currentColor"
    stroke-width="1.75"
    stroke-linecap="round"
    stroke-linejoin="round"
    aria-hidden="true"
  >
    {children}
  </svg>
);

export const DiskIcon = icon(
  <>
    <ellipse cx="12" cy="5.5" rx="8" ry="3" />
    <path d="M4 5.5v13c0 1.7 3.6 3 8 3s8-1.3 8-3v-13M4 12c0 1.7 3.6 3 8 3s8-1.3 8-3" />
  </>,
);
export const SandboxIcon = icon(
  <>
    <rect x="3" y="4" width="18" height="16" rx="2.5" />
    <path d="m7 9 3 3-3 3M13 15h4" />
  </>,
);
export const SnapshotIcon = icon(
  <>
    <rect x="3" y="6" width="18" height="14" rx="2.5" />
    <circle cx="12" cy="13" r="3.5" />
    <path d="m8 6 1.5-2.5h5L16 6" />
  </>,
);
export const ImageIcon = icon(
  <>
    <path d="m12 3 8.5 4.5v9L12 21l-8.5-4.5v-9zM3.5 7.5 12 12l8.5-4.5M12 12v9" />
  </>,
);
export const KeyIcon = icon(
  <>
    <circle cx="8" cy="15" r="4.5" />
    <path d="m11.5 11.5 8-8M16 7l3 3" />
  </>,
);
export const ActivityIcon = icon(<path d="M3 12h4l3 7 4-14 3 7h4" />);
export const UsageIcon = icon(<path d="M4 20V10M10 20V4M16 20v-8M21 20H3" />);
export const WebhookIcon = icon(<path d="m4 12 16-8-6 16-3-6.500zM11 13.500 20 4" />);
export const HostIcon = icon(
  <>
    <rect x="3" y="4" width="18" height="7" rx="1.5" />
    <rect x="3" y="13" width="18" height="7" rx="1.5" />
    <path d="M7 7.500h.010M7 16.500h.010" />
  </>,
);
export const FolderIcon = icon(
  <path d="M3 6.5a2 2 0 0 1 2-2h4l2 2.5h8a2 2 0 0 1 2 2v9a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2z" />,
);
export const FileIcon = icon(
  <path d="M6 2.75h8l5 5v12a1.5 1.5 0 0 1-1.5 1.5h-11.500A1.5 1.500 0 0 1 5 19.750v-15.500A1.500 1.500 0 0 1 6 2.750zM13.500 3v5.250h5.250" />,
);
export const SunIcon = icon(
  <>
    <circle cx="12" cy="12" r="4" />
    <path d="M12 2.5v2M12 19.500v2M2.500 12h2M19.500 12h2M5.300 5.300l1.400 1.400M17.300 17.300l1.400 1.400M5.300 18.700l1.400-1.400M17.300 6.700l1.400-1.400" />
  </>,
);
export const MoonIcon = icon(
  <path d="M20 14.500A8.500 8.500 0 0 1 9.500 4a8.500 8.500 0 1 0 10.500 10.500z" />,
);
export const ExitIcon = icon(
  <path d="M10 4H6a2 2 0 0 0-2 2v12a2 2 0 0 0 2 2h4M15 8l4 4-4 4M19 12H9" />,
);
export const CrossIcon = icon(<path d="m6 6 12 12M18 6 6 18" />);
export const PlusIcon = icon(<path d="M12 5v14M5 12h14" />);
export const CopyIcon = icon(
  <>
    <rect x="9" y="9" width="11" height="11" rx="2" />
    <path d="M5 15H4.500a1.500 1.500 0 0 1-1.500-1.500v-9A1.500 1.500 0 0 1 4.500 3h9A1.500 1.500 0 0 1 15 4.500V5" />
  </>,
);
