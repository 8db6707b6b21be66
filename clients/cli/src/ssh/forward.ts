import type { Process, Sandbox } from '@berth/sdk';
import type { ServerChannel } from 'ssh2';
import { quote } from '../quote.ts';
import { ChannelClosed, closed, passInput, send } from './channel.ts';

/** Where a client wants a connection to, as seen from the sandbox. */
interface Target {
  readonly host: string;
  readonly port: number;
}

/*
 * Connections are made by a small program in the sandbox, in a language that its image has. It
 * passes bytes between its input and output and the connection, and says on standard error what
 * happens: `+` connected, `-` and why not, `.` the peer has ended its direction after so many
 * bytes. What it says may come before or after bytes of its output.
 */

const PERL = `use IO::Socket::IP; use IO::Socket; $| = 1;
my $s = IO::Socket::IP->new(PeerHost => $ARGV[0], PeerPort => $ARGV[1], Type => SOCK_STREAM)
  or do { print STDERR "-$@\\n"; exit 1 };
print STDERR "+\\n";
sub pass { my ($from, $to) = @_; my $total = 0;
  while (my $n = sysread $from, my $b, 65536) {
    for (my $at = 0; $at < $n;) { my $w = syswrite $to, $b, $n - $at, $at; exit 0 unless $w; $at += $w }
    $total += $n;
  }
  return $total }
$SIG{PIPE} = "IGNORE";
my $child = fork;
if (!$child) { pass(\\*STDIN, $s); shutdown $s, 1; exit 0 }
my $total = pass($s, \\*STDOUT); print STDERR ".$total\\n"; waitpid $child, 0;`;

const PYTHON = `import os, socket, sys, threading
try: s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
except OSError as e: os.write(2, ("-%s\\n" % e).encode()); sys.exit(1)
os.write(2, b"+\\n")
def up():
  while True:
    b = os.read(0, 65536)
    if not b: break
    s.sendall(b)
  s.shutdown(socket.SHUT_WR)
t = threading.Thread(target=up); t.start()
total = 0
while True:
  b = s.recv(65536)
  if not b: break
  total += len(b)
  while b: b = b[os.write(1, b):]
os.write(2, b".%d\\n" % total); t.join()`;

const NODE = `const s = require("net").connect({ host: process.argv[1], port: +process.argv[2], allowHalfOpen: true });
s.on("error", (e) => { process.stderr.write("-" + e.message + "\\n"); process.exit(1); });
s.on("connect", () => { process.stderr.write("+\\n"); process.stdin.pipe(s); s.pipe(process.stdout, { end: false }); });
s.on("end", () => process.stderr.write("." + s.bytesRead + "\\n"));
s.on("close", () => process.exit());`;

function relayCommand({ host, port }: Target): string {
  const target = `${quote(host)} ${port}`;
  return [
    `command -v perl >/dev/null 2>&1 && exec perl -e ${quote(PERL)} ${target}`,
    `command -v python3 >/dev/null 2>&1 && exec python3 -c ${quote(PYTHON)} ${target}`,
    `command -v node >/dev/null 2>&1 && exec node -e ${quote(NODE)} ${target}`,
    `echo '-the image has none of perl, python3 and node' >&2; exit 1`,
  ].join('\n');
}

/** The channel of one forwarded connection, once it is known to be there. */
class Forwarded {
  readonly #open: () => ServerChannel;
  readonly #process: Process;
  #channel: ServerChannel | undefined;
  #end: Promise<void> | undefined;
  #sentBytes = 0;
  /** After how many bytes the peer has ended its direction. */
  #endsAt: number | undefined;

  constructor(open: () => ServerChannel, process: Process) {
    this.#open = open;
    this.#process = process;
  }

  get isOpen(): boolean {
    return this.#channel !== undefined;
  }

  /** @throws ChannelClosed */
  async data(bytes: Uint8Array): Promise<void> {
    const channel = this.#opened();
    await send(channel, bytes, this.#end ?? Promise.resolve());
    this.#sentBytes += bytes.length;
    this.#endInTime();
  }

  /** @throws Error when there is no connection */
  said(text: string): void {
    const [, sign = '', rest = ''] = /^([-+.])(.*)/su.exec(text) ?? [];
    if (sign === '-' || sign === '') throw new Error(rest.trim() || text.trim());
    this.#opened();
    const [, total] = /^\.(\d+)$/mu.exec(text) ?? [];
    if (total !== undefined) this.#endsAt = Number(total);
    this.#endInTime();
  }

  over(): void {
    this.#channel?.end();
    this.#channel?.close();
  }

  #opened(): ServerChannel {
    if (this.#channel !== undefined) return this.#channel;
    const channel = this.#open();
    this.#channel = channel;
    this.#end = closed(channel);
    channel.on('error', () => undefined); // Its end is noticed by `closed`.
    this.#end.then(() => this.#process.detach()).catch(() => undefined);
    passInput(channel, this.#process).catch(() => undefined);
    return channel;
  }

  #endInTime(): void {
    if (this.#sentBytes === this.#endsAt) this.#channel?.eof();
  }
}

const isGone = (error: unknown): boolean =>
  error instanceof ChannelClosed || (error as { code?: string }).code === 'detached';

/** Connects the channel of a forwarded port to an address as the sandbox reaches it. */
export async function forward(
  sandbox: Sandbox,
  target: Target,
  accept: () => ServerChannel,
  reject: () => void,
): Promise<void> {
  const process = await sandbox.start(relayCommand(target)).catch((error: unknown) => {
    reject();
    throw error;
  });
  const forwarded = new Forwarded(accept, process);
  try {
    for await (const { stream, bytes } of process) {
      if (stream === 'stdout') await forwarded.data(bytes);
      else forwarded.said(Buffer.from(bytes).toString());
    }
  } catch (error) {
    if (!forwarded.isOpen) reject();
    await process[Symbol.asyncDispose]();
    if (!isGone(error)) {
      const { message } = error as Error;
      throw new Error(`${target.host}:${target.port}: ${message}`, { cause: error });
    }
  } finally {
    forwarded.over();
  }
}
