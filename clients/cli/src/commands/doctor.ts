import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { Berth, BerthError, type Fetch, SessionError, UnauthorizedError } from '@berth/sdk';
import { leaf } from '../command.ts';
import { checkout, findLogin, type Login } from '../context.ts';
import { EXIT } from '../failure.ts';
import { loadNetwork } from '../net/network.ts';
import { Output, paint } from '../output.ts';
import { visible } from '../text.ts';
import { VERSION } from '../version.ts';

/** A check's result; those of the host come from scripts/doctor/main.ts in the same form. */
interface Finding {
  readonly check: string;
  readonly level: 'ok' | 'warning' | 'failed';
  readonly message: string;
  readonly next?: string;
}

const MARKS = { ok: ['green', '✓'], warning: ['yellow', '!'], failed: ['red', '✗'] } as const;
const CLOCK_MS_MAX = 5_000;
const ANSWER_MS_MAX = 10_000;
/** Sandboxes of the account whose hosts are tried. */
const HOSTS_TRIED = 3;

const messageOf = (error: unknown): string =>
  error instanceof Error ? error.message : String(error);

/** Whether the server answers, knows the key, and agrees on the time. */
async function checkServer({ url, apiKey, source }: Login): Promise<Finding[]> {
  let date: string | null = null;
  const { fetch: made = fetch, WebSocket } = await loadNetwork(true);
  const timed: Fetch = async (...request) => {
    const response = await made(...request);
    date = response.headers.get('date');
    return response;
  };
  const options = { baseUrl: url, apiKey, retries: 1, timeoutMs: ANSWER_MS_MAX };
  try {
    const berth = new Berth({ ...options, fetch: timed, WebSocket });
    const begun = performance.now();
    for await (const _page of berth.disks.list({ limit: 1 }).pages()) break;
    const ms = Math.round(performance.now() - begun);
    const message = `${url} answers in ${ms} ms and knows the key (${source})`;
    return [
      { check: 'server', level: 'ok', message },
      ...checkClock(date),
      ...(await checkHosts(berth)),
    ];
  } catch (error) {
    const next =
      error instanceof UnauthorizedError ? 'run berth login' : 'see whether it runs: ./scripts/up';
    const message = `${url}: ${messageOf(error)} (${source})`;
    return [{ check: 'server', level: 'failed', message, next }];
  }
}

function checkClock(date: string | null): Finding[] {
  if (date === null) return [];
  const apartMs = Math.abs(Date.now() - Date.parse(date));
  if (apartMs <= CLOCK_MS_MAX)
    return [{ check: 'clock', level: 'ok', message: 'agrees with the server' }];
  const message = `this clock and the server's are ${Math.round(apartMs / 1_000)} s apart`;
  return [{ check: 'clock', level: 'warning', message, next: 'synchronize both by NTP' }];
}

/**
 * Whether sessions reach the hosts of running sandboxes: a process that is not there is refused by
 * them.
 */
async function checkHosts(berth: Berth): Promise<Finding[]> {
  const running = (await berth.sandboxes.list()).filter(({ status }) => status === 'running');
  const tried = running.slice(-HOSTS_TRIED).map(async (sandbox): Promise<Finding> => {
    const check = 'sessions';
    try {
      const signal = AbortSignal.timeout(ANSWER_MS_MAX);
      const lost = await sandbox.attach(crypto.randomUUID(), { signal });
      lost.detach();
    } catch (error) {
      if (!(error instanceof SessionError) || error.code !== 'process_not_found') {
        const next = "open the public address of its host's agent (AGENT_PUBLIC_URL)";
        const message = `the host of sandbox ${sandbox.name}: ${messageOf(error)}`;
        return { check, level: 'failed', message, next };
      }
    }
    return { check, level: 'ok', message: `the host of sandbox ${sandbox.name} can be reached` };
  });
  return Promise.all(tried);
}

/** The checks of the host itself, which belong to the checkout. */
async function checkHost(root: string): Promise<Finding[]> {
  const node = join(root, 'node_modules/node/bin/node');
  if (!existsSync(node)) {
    const message = 'this checkout is not set up';
    return [{ check: 'host', level: 'failed', message, next: 'run ./scripts/setup' }];
  }
  const child = spawn(node, [join(root, 'scripts/doctor/main.ts'), '--json'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const printed = await text(child.stdout);
  try {
    return (JSON.parse(printed) as { findings: Finding[] }).findings;
  } catch {
    const message = 'the checks of this host broke off';
    return [{ check: 'host', level: 'failed', message, next: 'run ./scripts/up --check' }];
  }
}

async function checkLogin(profile: string | undefined): Promise<Finding[]> {
  try {
    return await checkServer(await findLogin(profile));
  } catch (error) {
    if (error instanceof BerthError) throw error;
    return [
      { check: 'server', level: 'failed', message: messageOf(error), next: 'run berth login' },
    ];
  }
}

function print(output: Output, findings: readonly Finding[]): void {
  for (const { check, level, message, next } of findings) {
    if (output.isQuiet && level === 'ok') continue;
    const [colour, mark] = MARKS[level];
    const line = `${check}: ${message}${next === undefined ? '' : `: ${next}`}`;
    output.text(`${paint(colour, mark)} ${visible(line)}\n`);
  }
}

export const doctorCommand = () =>
  leaf('doctor')
    .summary('what works here and what does not')
    .description(
      `Say what works, what does not, and what to do about it: the server and the way to it; in a checkout of
Berth, also what this host can do, as ./scripts/up --check does. Ends with 1 when something has failed.`,
    )
    .option('--no-host', 'leave this host out')
    .action(async ({ profile, host, ...options }) => {
      const output = new Output(options);
      const root = host ? checkout() : undefined;
      const version = `berth ${VERSION}, Node ${process.version}`;
      const findings = await output.during('checking', async () => [
        { check: 'client', level: 'ok', message: version } as const,
        ...(await checkLogin(profile)),
        ...(root === undefined ? [] : await checkHost(root)),
      ]);
      if (output.isJson) output.json({ findings });
      else print(output, findings);
      if (findings.some(({ level }) => level === 'failed')) process.exitCode = EXIT.failure;
    });
