import { leaf } from '../command.ts';
import { openedForSessions } from '../context.ts';
import { VERSION } from '../version.ts';

const MESSAGE_BYTES_MAX = 16 * 1024 * 1024;

/** Most of this program: loaded when it serves, not for help and completions. */
const loadServer = async () => {
  const [{ createMcpServer }, { StdioServerTransport }] = await Promise.all([
    import('@berth/mcp'),
    import('@modelcontextprotocol/sdk/server/stdio.js'),
  ]);
  return { createMcpServer, StdioServerTransport };
};

export const mcpCommand = () =>
  leaf('mcp')
    .summary('offer tools to a language model, by MCP on standard input and output')
    .description(
      `Speak the Model Context Protocol on standard input and output, for programs that give tools to a
language model: disks, sandboxes, processes and files of the account. docs/mcp.md says how to set them up.`,
    )
    .action(async (options) => {
      const { berth } = await openedForSessions(options);
      const { createMcpServer, StdioServerTransport } = await loadServer();
      const server = createMcpServer({ berth, version: VERSION });
      const { stdin, stdout } = process;
      const bounds = { maxBufferSize: MESSAGE_BYTES_MAX };
      await server.connect(new StdioServerTransport(stdin, stdout, bounds));
      // The program that started us has gone: what still works for it ends.
      await new Promise((gone) => {
        stdin.once('end', gone).once('close', gone);
      });
      await server.close();
    });
