import type { ProcessExit, Sandbox, StartOptions } from '@berth/sdk';
import type { PseudoTtyInfo, ServerChannel, Session } from 'ssh2';
import { ChannelClosed, closed, passInput, type Report, send } from './channel.ts';
import { serveSftp } from './sftp/serve.ts';
import { announcingCommand, hangUp, readProcessNumber, type Request } from './command.ts';

type Size = { readonly cols: number; readonly rows: number };

/** Clients send 0 when they do not know. */
const sizeOf = ({ cols, rows }: Size): Size => ({ cols: cols || 80, rows: rows || 24 });

const NAME = /^[A-Za-z_]\w*$/u;
/** The exit code that shells report for commands which ended without one. */
const EXIT_UNKNOWN = 255;

/**
 * Serves one session of a client: a shell, a command, or file transfer. What it asks for before
 * (terminal, variables) counts for what it starts.
 */
export function serveSession(
  sandbox: Sandbox,
  session: Session,
  begin: (job: Promise<void>) => void,
  report: Report,
): void {
  const env: Record<string, string> = {};
  let terminal: Size | undefined;
  let resize: (size: Size) => void = (size) => {
    terminal = size;
  };
  session.on('env', (accept, _reject, { key, val }) => {
    if (NAME.test(key)) env[key] = val;
    accept?.();
  });
  session.on('pty', (accept, _reject, info: PseudoTtyInfo & { term?: string }) => {
    terminal = sizeOf(info);
    if (info.term !== undefined && info.term !== '') env['TERM'] = info.term;
    accept?.();
  });
  session.on('window-change', (accept, _reject, info) => {
    resize(sizeOf(info));
    accept?.();
  });
  const onStart = (apply: (size: Size) => void): void => {
    resize = apply;
  };
  const run = (channel: ServerChannel, request: Request): void => {
    const options = { env, terminal: terminal ?? false };
    begin(runProcess(sandbox, channel, request, options, onStart));
  };
  session.on('shell', (accept) => run(accept(), { type: 'shell' }));
  session.on('exec', (accept, _reject, { command }) => run(accept(), { type: 'exec', command }));
  session.on('sftp', (accept) => begin(serveSftp(sandbox, accept(), report)));
}

function tellExit(channel: ServerChannel, { exitCode, status, reason }: ProcessExit): void {
  if (exitCode !== undefined) channel.exit(exitCode);
  else if (status === 'cancelled') channel.exit('KILL', false, reason ?? '');
  else channel.exit(EXIT_UNKNOWN);
}

async function runProcess(
  sandbox: Sandbox,
  channel: ServerChannel,
  request: Request,
  options: StartOptions,
  onResize: (apply: (size: Size) => void) => void,
): Promise<void> {
  const end = closed(channel);
  channel.on('error', () => undefined); // Its end is noticed by `end`.
  let process;
  try {
    process = await sandbox.start(announcingCommand(request), options);
  } catch (error) {
    await send(channel.stderr, Buffer.from(`berth: ${(error as Error).message}\r\n`), end);
    channel.exit(EXIT_UNKNOWN);
    channel.end();
    throw error;
  }
  onResize((size) => {
    process.resize(size).catch(() => undefined); // The process has ended.
  });
  const output = process[Symbol.asyncIterator]();
  const { number, rest } = await readProcessNumber(output);
  passInput(channel, process).catch(() => undefined); // Broken with the channel, which `end` tells.
  const leaving = end.then(() => process.detach());
  leaving.catch(() => undefined);
  try {
    if (rest.length > 0) await send(channel, rest, end);
    for (let next; !(next = await output.next()).done;) {
      const { stream, bytes } = next.value;
      await send(stream === 'stdout' ? channel : channel.stderr, bytes, end);
    }
    tellExit(channel, await process.exit);
    channel.end();
  } catch (error) {
    // The client went first: its command is told, as a terminal that is closed would tell it.
    process.detach();
    await hangUp(sandbox, number);
    if (!(error instanceof ChannelClosed) && (error as { code?: string }).code !== 'detached') {
      throw error;
    }
  }
}
