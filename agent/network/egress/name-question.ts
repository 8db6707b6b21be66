/** A question for a name server, as far as a refusal needs it (RFC 1035, 4.1). */
interface Question {
  /** In lower case, without the root's dot; other characters than those of hosts are `?`. */
  readonly name: string;
  readonly isOfInternet: boolean;
  /** Behind the question. */
  readonly end: number;
}

const HEAD_BYTES = 12;
const LABEL_BYTES_MAX = 63;
const NAME_BYTES_MAX = 255;
const CLASS_IN = 1;
const CODES = { formatError: 1, nameError: 3, notImplemented: 4, refused: 5 } as const;
/** Bits of the second 16: an answer, its operation, and whether recursion is desired. */
const [IS_ANSWER, OPERATION, IS_DESIRED, IS_AVAILABLE] = [0x8000, 0x7800, 0x0100, 0x0080];

function readQuestion(message: Buffer): Question | undefined {
  const labels: string[] = [];
  let at = HEAD_BYTES;
  for (;;) {
    const length = message[at];
    at += 1;
    if (length === undefined || length > LABEL_BYTES_MAX || at - HEAD_BYTES > NAME_BYTES_MAX) {
      return undefined;
    }
    if (length === 0) break;
    labels.push(message.toString('latin1', at, at + length));
    at += length;
  }
  const end = at + 4; // Type and class.
  if (message.length < end) return undefined;
  const name = labels
    .join('.')
    .toLowerCase()
    .replaceAll(/[^a-z0-9_.-]/gu, '?');
  return { name, isOfInternet: message.readUInt16BE(at + 2) === CLASS_IN, end };
}

/** The answer to a question about a name that is not to be looked up. */
export interface Refusal {
  readonly answer: Buffer;
  /** The name that was asked for; undefined when nothing can be told of it. */
  readonly name: string | undefined;
}

/**
 * Answers a question with NXDOMAIN, of another class than IN with REFUSED.
 * @param message of DNS, from anybody
 * @returns undefined for what deserves no answer
 */
export function refuseQuestion(message: Buffer): Refusal | undefined {
  if (message.length < HEAD_BYTES) return undefined;
  const flags = message.readUInt16BE(2);
  if ((flags & IS_ANSWER) !== 0) return undefined;
  const refuse = (code: number, end = HEAD_BYTES): Buffer => {
    const answer = Buffer.alloc(end);
    message.copy(answer, HEAD_BYTES, HEAD_BYTES, end);
    answer.writeUInt16BE(message.readUInt16BE(0), 0);
    const kept = flags & (OPERATION | IS_DESIRED);
    answer.writeUInt16BE(IS_ANSWER | kept | IS_AVAILABLE | code, 2);
    answer.writeUInt16BE(end > HEAD_BYTES ? 1 : 0, 4);
    return answer;
  };
  if ((flags & OPERATION) !== 0) return { answer: refuse(CODES.notImplemented), name: undefined };
  const question = message.readUInt16BE(4) === 1 ? readQuestion(message) : undefined;
  if (question === undefined) return { answer: refuse(CODES.formatError), name: undefined };
  const { name, isOfInternet, end } = question;
  return { answer: refuse(isOfInternet ? CODES.nameError : CODES.refused, end), name };
}
