import type { McpServer, ToolCallback } from '@modelcontextprotocol/sdk/server/mcp.js';
import type { CallToolResult, ToolAnnotations } from '@modelcontextprotocol/sdk/types.js';
import type { Berth } from '@berth/sdk';
import { z } from 'zod';
import { explain } from './explain.ts';

/** Context of a tool call. */
export interface Call {
  readonly berth: Berth;
  /** Aborted when the caller cancels the call or hangs up. */
  readonly signal: AbortSignal;
  /** Tells a caller that asked for it how far the call is. */
  readonly progress: (message: string) => void;
}

interface Answer<T> {
  readonly data: T;
  /** For people and models; the data as JSON when it is left out. */
  readonly text?: string;
}

type Shape = z.ZodRawShape;
type Fields<S extends Shape> = z.output<z.ZodObject<S>>;

/** Something that a model can do. */
export interface Tool<I extends Shape = Shape, O extends Shape = Shape> {
  readonly name: string;
  readonly title: string;
  /** The tool's purpose, and when to use another one. */
  readonly description: string;
  /**
   * `read`: changes nothing. `change`: adds to what is there. `destroy`: may take something away.
   */
  readonly effect: 'read' | 'change' | 'destroy';
  /** Doing it twice is doing it once. */
  readonly idempotent?: boolean;
  readonly input: I;
  readonly output: O;
  run(input: Fields<I>, call: Call): Promise<Answer<Fields<O>>>;
}

/** Infers a tool's types from its schemas. */
export const tool = <I extends Shape, O extends Shape>(definition: Tool<I, O>): Tool => definition;

type Extra = Parameters<ToolCallback>[0];

const annotationsOf = ({
  title,
  effect,
  idempotent = effect === 'read',
}: Tool): ToolAnnotations => ({
  title,
  readOnlyHint: effect === 'read',
  destructiveHint: effect === 'destroy',
  idempotentHint: idempotent,
  openWorldHint: false,
});

/**
 * Sends progress while the caller has asked for it; a notification that does not arrive is no
 * failure.
 */
function progressOf({ _meta, sendNotification, signal }: Extra): Call['progress'] {
  const progressToken = _meta?.progressToken;
  if (progressToken === undefined) return () => undefined;
  let progress = 0;
  return (message) => {
    progress += 1;
    if (signal.aborted) return;
    const params = { progressToken, progress, message };
    sendNotification({ method: 'notifications/progress', params }).catch(() => undefined);
  };
}

/** Offers a tool to the clients of a server. Its failures are results that say what to do next. */
export function addTool(server: McpServer, berth: Berth, definition: Tool): void {
  const { name, title, description, input, output } = definition;
  const config = {
    ...{ title, description, annotations: annotationsOf(definition) },
    inputSchema: z.strictObject(input), // A misspelt field is refused, not ignored.
    outputSchema: z.object(output),
  };
  server.registerTool(name, config, async (given, extra): Promise<CallToolResult> => {
    const { signal } = extra;
    try {
      const call = { berth, signal, progress: progressOf(extra) };
      const { data, text = JSON.stringify(data) } = await definition.run(given, call);
      return { content: [{ type: 'text', text }], structuredContent: data };
    } catch (error) {
      return { content: [{ type: 'text', text: explain(error) }], isError: true };
    }
  });
}

const TICK_MS = 2_000;

/** Tells progress every two seconds for as long as the work takes. */
export async function whileTelling<T>(
  { progress }: Call,
  describe: () => string,
  work: Promise<T>,
): Promise<T> {
  const began = performance.now();
  const ticking = setInterval(() => {
    const seconds = Math.round((performance.now() - began) / 1000);
    progress(`${describe()} (${seconds} s)`);
  }, TICK_MS);
  try {
    return await work;
  } finally {
    clearInterval(ticking);
  }
}
