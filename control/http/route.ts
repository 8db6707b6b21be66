import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import type { Readable } from 'node:stream';
import type { Static, TSchema } from 'typebox';
import type { Caller } from '../../shared/directory/api-keys.ts';
import type { ErrorCode } from '../../shared/errors.ts';
import type { KeyScope } from '../../shared/key-scopes.ts';
import type { ActivityType } from '../../shared/activity-types.ts';
import type { Deps } from '../region/deps.ts';

/** The groups of endpoints, with what they are about. */
export const tags = {
  Disks: 'File systems that commands, sandboxes and S3 clients share.',
  'Disk users': 'Who may use a disk directly, with credentials of its own.',
  'Serverless execution': 'Commands and searches on disks, without a machine of the caller.',
  'Sandbox images': 'Images that sandboxes can be created from.',
  Sandboxes: 'Persistent machines that can be paused, resumed and forked.',
  'Sandbox files': 'Files and directories of running sandboxes.',
  Snapshots: 'Disk and memory of sandboxes, kept to create others from.',
  'Sandbox ports': 'Ways from outside to ports of sandboxes.',
  'API keys': 'Credentials of an account.',
  Webhooks: 'Where events of the account are sent.',
  Hosts: 'The hosts that everything runs on; for operators.',
  Account: 'What was done with the keys of an account, and how much it used.',
} as const;
type Tag = keyof typeof tags;

type Method = 'get' | 'post' | 'put' | 'delete';

/** A request after its credentials and every part of it were checked. */
interface Input<P extends TSchema, Q extends TSchema, B extends TSchema> {
  readonly deps: Deps;
  readonly caller: Caller;
  readonly params: Static<P>;
  readonly query: Static<Q>;
  /** The query as it came, without its question mark: for values that are no text. */
  readonly search: string;
  readonly body: Static<B>;
  /** The request itself, for the bytes of an upload. */
  readonly request: IncomingMessage;
  readonly requestId: string;
  /** When the request arrived, on the clock of `performance.now()`. */
  readonly arrivedAt: number;
  /** GET also serves HEAD. */
  readonly method: string;
  /** Request headers; names in lower case. */
  readonly headers: IncomingHttpHeaders;
  /** The IP address of the connection. */
  readonly address: string;
  /** A signal that is aborted when the caller hangs up. */
  readonly callerGone: () => AbortSignal;
  /** Adds fields to the request's one log event. */
  readonly note: (fields: Record<string, unknown>) => void;
}

/** A handler's answer; `endpoint` puts the envelope around it. */
export interface EnvelopeReply {
  readonly status: number;
  /** Absent for a bare success. */
  readonly data?: unknown;
  readonly nextCursor?: string | undefined;
}

/** Bytes that pass through as they are, without the envelope. */
export interface StreamReply {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  /** Ended or broken off by whoever renders it. */
  readonly stream: Readable;
}

export type Reply = EnvelopeReply | StreamReply;

/** Describes an endpoint: the router, the validation and the OpenAPI document all read this. */
export interface Route<
  P extends TSchema = TSchema,
  Q extends TSchema = TSchema,
  B extends TSchema = TSchema,
> {
  readonly method: Method;
  /** With parameters in braces, as OpenAPI writes them. */
  readonly path: string;
  readonly operationId: string;
  /** The scope that a key needs for it (docs/api.md, Scopes); `public`: no API key is asked for. */
  readonly scope: KeyScope | 'public';
  /**
   * The event that the call leaves in the activity of the account. Whatever changes something has
   * one.
   */
  readonly event?: ActivityType;
  /** A scope that some bodies need besides. */
  furtherScope?(body: Static<B>): KeyScope | undefined;
  /** A line without a full stop. */
  readonly summary: string;
  /** Further facts for callers, in whole sentences. */
  readonly description: string;
  readonly tag: Tag;
  /** Whole bodies of successful answers by status. */
  readonly replies: Readonly<Record<number, TSchema>>;
  /** The errors of this endpoint besides those that all of its kind have (`route-errors.ts`). */
  readonly errors: readonly ErrorCode[];
  /** Whole bodies of those errors that say more than the plain envelope, by status. */
  readonly failures?: Readonly<Record<number, TSchema>>;
  readonly params?: P;
  readonly query?: Q;
  readonly body?: B;
  /** A body may be left out. */
  readonly bodyOptional?: boolean;
  /** How many bytes a body has at most, where that is less than for all others. */
  readonly bodyBytesMax?: number;
  /** Creates or runs something: an `Idempotency-Key` makes it happen once. */
  readonly idempotent?: boolean;
  /** A body in which an object has the same key twice is refused. */
  readonly bodyKeysUnique?: boolean;
  /** The 401 of this endpoint is plain text (docs/api.md, Authentication). */
  readonly plainUnauthorized?: boolean;
  /** Creates, starts, resumes or forks a sandbox: its 503s have the codes that clients wait out. */
  readonly bringsUpSandbox?: boolean;
  /**
   * True when its command can fill disks: refused while the account's disks hold as much as they
   * may.
   */
  readonly fillsDisks?: boolean;
  /** Writes nothing to the directory, though it is a POST: works also while that is almost full. */
  readonly writesNothing?: boolean;
  /** Statuses that are answered without a body. */
  readonly empty?: readonly number[];
  /** Statuses that are answered with a file, or a part of it, instead of the envelope. */
  readonly files?: readonly number[];
  /** Statuses that are answered with server-sent events, for as long as the caller stays. */
  readonly events?: readonly number[];
  /** The body is bytes of any kind, which the handler reads itself. */
  readonly upload?: boolean;
  handle(input: Input<P, Q, B>): Promise<Reply>;
}

/** A route whose calls change something. */
export type ChangingRoute = Route & { readonly event: ActivityType };

export const changes = (route: Route): route is ChangingRoute => route.event !== undefined;

/** Infers a route's types from its schemas. */
export const route = <
  P extends TSchema = TSchema,
  Q extends TSchema = TSchema,
  B extends TSchema = TSchema,
>(
  definition: Route<P, Q, B>,
): Route => definition;
