import { type McpServer, ResourceTemplate } from '@modelcontextprotocol/sdk/server/mcp.js';
import type { ReadResourceResult } from '@modelcontextprotocol/sdk/types.js';
import type { Berth } from '@berth/sdk';
import { explain } from './explain.ts';
import { findDisk, findSandbox } from './fields.ts';
import { readPart, textOf } from './read-part.ts';
import type { Call } from './tool.ts';

/** More than a model can use; larger files are read in parts by the tools. */
const RESOURCE_BYTES_MAX = 1024 * 1024;

interface Source {
  readonly name: string;
  readonly template: string;
  readonly title: string;
  read(call: Call, variables: Readonly<Record<string, string | string[]>>): Promise<Buffer>;
}

const variable = (variables: Readonly<Record<string, string | string[]>>, name: string): string =>
  decodeURIComponent([variables[name] ?? ''].flat().join('/'));

async function readWhole(
  files: Parameters<typeof readPart>[0],
  path: string,
  signal: AbortSignal,
): Promise<Buffer> {
  const wanted = { offset: 0, length: RESOURCE_BYTES_MAX, signal };
  const { bytes, isEnd } = await readPart(files, path, wanted);
  if (isEnd) return bytes;
  throw new Error(
    `the file has more than the ${RESOURCE_BYTES_MAX} bytes of a resource: read parts of it with file_read or disk_read_file`,
  );
}

const sources: readonly Source[] = [
  {
    name: 'sandbox-file',
    template: 'berth://sandboxes/{sandbox}/files/{+path}',
    title: 'A file of a running sandbox',
    async read(call, variables) {
      const { files } = await findSandbox(call, variable(variables, 'sandbox'));
      return readWhole(files, `/${variable(variables, 'path')}`, call.signal);
    },
  },
  {
    name: 'disk-file',
    template: 'berth://disks/{disk}/files/{+path}',
    title: 'A file of a disk',
    async read(call, variables) {
      const { files } = await findDisk(call, variable(variables, 'disk'));
      return readWhole(files, variable(variables, 'path'), call.signal);
    },
  },
];

function contentsOf(uri: URL, bytes: Buffer): ReadResourceResult {
  const text = textOf(bytes);
  const content =
    text === undefined
      ? { mimeType: 'application/octet-stream', blob: bytes.toString('base64') }
      : { mimeType: 'text/plain', text };
  return { contents: [{ uri: uri.href, ...content }] };
}

/** Offers files as resources, under addresses that name sandbox or disk, and path. */
export function addResources(server: McpServer, berth: Berth): void {
  for (const source of sources) {
    const { name, template, title } = source;
    const uris = new ResourceTemplate(template, { list: undefined });
    const about = { title, description: 'Text when it is UTF-8, else base64. At most 1 MiB.' };
    server.registerResource(name, uris, about, async (uri, variables, { signal }) => {
      const call = { berth, signal, progress: () => undefined };
      try {
        return contentsOf(uri, await source.read(call, variables));
      } catch (error) {
        throw new Error(explain(error), { cause: error });
      }
    });
  }
}
