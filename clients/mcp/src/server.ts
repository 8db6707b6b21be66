import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import type { Berth } from '@berth/sdk';
import { diskTools } from './disks.ts';
import { fileTools } from './files.ts';
import { processTools } from './processes.ts';
import { addResources } from './resources.ts';
import { sandboxTools } from './sandboxes.ts';
import { addTool } from './tool.ts';

/** The tools and resources of a Model Context Protocol server, and their caller. */
export interface McpOptions {
  /** Makes the tools' calls, with the rights of its API key. */
  readonly berth: Berth;
  /** Berth's version, told to clients. */
  readonly version: string;
}

const INSTRUCTIONS = `Berth runs code in sandboxes (machines with a disk of their own, which can be paused, resumed and forked with their memory) and on shared disks.

- To run code: sandbox_create, file_write, sandbox_run. Delete sandboxes that are not needed any more: sandbox_delete.
- To try alternatives: prepare one sandbox, then sandbox_fork for each of them; copies cannot disturb each other.
- For what runs longer than a minute, or reads input as it goes: process_start, process_output, process_input.
- For one command on a shared disk, without a sandbox: disk_exec; it has no network.
- Long output is cut in the middle, and the answer says so: write it to a file and read the part that matters.`;

/** A server with all tools and resources. It serves one connection: make another for the next. */
export function createMcpServer({ berth, version }: McpOptions): McpServer {
  const server = new McpServer(
    { name: 'berth', title: 'Berth', version },
    { instructions: INSTRUCTIONS, capabilities: { tools: {}, resources: {} } },
  );
  for (const tool of [...diskTools, ...sandboxTools, ...processTools, ...fileTools]) {
    addTool(server, berth, tool);
  }
  addResources(server, berth);
  return server;
}
