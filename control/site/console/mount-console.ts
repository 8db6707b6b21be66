import type Router from '@koa/router';
import type { Authenticator } from '../../../shared/directory/authenticator.ts';
import type { RequestState } from '../../http/middleware/request-state.ts';
import type { Deps } from '../../region/deps.ts';
import type { ConsoleSessions } from './console-sessions.ts';
import { serveConsole } from './serve-console.ts';
import type { LinkShare } from '../../region/link-share.ts';
import { SESSION_PATH, sessionCalls } from './session-calls.ts';

export interface ConsoleOptions {
  readonly sessions: ConsoleSessions;
  /** Where the console's built files are. */
  readonly consoleDir: string;
  readonly share: LinkShare;
}

/** Adds the console's page, its assets, and the calls that begin and end its sessions. */
export function mountConsole(
  router: Router<RequestState>,
  authenticator: Authenticator,
  { config, hub }: Deps,
  { sessions, consoleDir, share }: ConsoleOptions,
): void {
  const calls = sessionCalls(sessions, authenticator, config.cluster.region);
  router.get(SESSION_PATH, calls.get);
  router.post(SESSION_PATH, calls.post);
  router.delete(SESSION_PATH, calls.delete);
  router.get(
    '/console{/*page}',
    serveConsole(consoleDir, () => ({ urls: hub.publicUrls, areAll: !share.isPartial })),
  );
}
