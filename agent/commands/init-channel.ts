import { EventEmitter } from 'node:events';
import { Socket } from 'node:net';
import type { Duplex } from 'node:stream';

interface InitEvents {
  ready: [];
  started: [];
  exited: [status: number];
  closed: [];
}

/** A command for the shell, or a program and its arguments, which need none. */
export type ContainerCommand = string | readonly [program: string, ...args: string[]];

const MESSAGE_BYTES = 8;
/** In the length that is sent to init. */
const IS_PROGRAM = 0x8000_0000;
const READY = 0;
const STARTED = 1;
const EXITED = 2;

/** The agent's end of the socket to a container's init; the protocol is described in init.c. */
export class InitChannel extends EventEmitter<InitEvents> {
  readonly #socket: Duplex;
  #received = Buffer.alloc(0);

  /** @param fd a stream socket; closed with the channel */
  static of(fd: number): InitChannel {
    return new InitChannel(new Socket({ fd, readable: true, writable: true }));
  }

  constructor(socket: Duplex) {
    super();
    this.#socket = socket;
    socket.on('data', (chunk: Buffer) => this.#receive(chunk));
    socket.on('close', () => this.emit('closed'));
    socket.on('error', () => socket.destroy()); // Init has exited; `close` follows.
  }

  run(command: ContainerCommand): void {
    const isProgram = typeof command !== 'string';
    const text = Buffer.from(isProgram ? command.map((part) => `${part}\0`).join('') : command);
    const length = Buffer.alloc(4);
    length.writeUInt32LE(text.length + (isProgram ? IS_PROGRAM : 0));
    this.#socket.write(Buffer.concat([length, text]));
  }

  /** Tells init to kill everything that still runs and to exit. */
  close(): void {
    this.#socket.destroy();
  }

  #receive(chunk: Buffer): void {
    this.#received = Buffer.concat([this.#received, chunk]);
    while (this.#received.length >= MESSAGE_BYTES) {
      const kind = this.#received.readUInt32LE(0);
      const value = this.#received.readUInt32LE(4);
      this.#received = this.#received.subarray(MESSAGE_BYTES);
      if (kind === READY) this.emit('ready');
      else if (kind === STARTED) this.emit('started');
      else if (kind === EXITED && value <= 255) this.emit('exited', value);
      else this.close();
    }
  }
}
