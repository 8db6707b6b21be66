/** The first command on the first disk, through the public API, as any client would run it. */
import { Type, type Static, type TSchema } from 'typebox';
import { ExecResult } from '../shared/schemas/exec.ts';
import { compile } from '../shared/validate.ts';
import { required, type Env } from './env-file.ts';
import { paths } from './local-paths.ts';
import { parseJson } from '../shared/json.ts';

const COMMAND =
  'date >> starts.txt; echo "Hello from a shared disk, start number $(wc -l < starts.txt)."; ' +
  'echo "Node $(node --version), $(python3 --version), $(git --version)"';

const DiskCreated = Type.Object({ data: Type.Object({ diskId: Type.String() }) });
const CommandRun = Type.Object({ data: ExecResult });

/** @throws Error when the API refuses or the command fails */
export async function runDemo(env: Env): Promise<void> {
  const disk = await post(env, '/api/disks', { name: 'demo' }, DiskCreated);
  const { diskId } = disk.data;
  const path = `/api/disks/${diskId}/exec`;
  const { data: result } = await post(env, path, { command: COMMAND }, CommandRun);
  console.log(`\nA command on disk ${diskId}:\n$ ${COMMAND}`);
  process.stdout.write(result.stdout);
  process.stderr.write(result.stderr);
  if (result.exitCode !== 0) throw new Error(`the demo command exited with ${result.exitCode}`);
  const { totalMs, queueMs, executeMs } = result.timing;
  console.log(`(total ${totalMs} ms: queued ${queueMs} ms, executed ${executeMs} ms)`);
  console.log(
    `\nTry next:\nnpx berth sandbox create first-box && npx berth sandbox shell first-box\n` +
      `. '${paths.clientEnv}'; curl -sS "$BASE_URL${path}" ` +
      `-H "Authorization: Bearer $API_KEY" -H 'Content-Type: application/json' ` +
      `-d '{"command":"ls -la; df -h ."}'\n`,
  );
}

async function post<T extends TSchema>(
  env: Env,
  path: string,
  body: unknown,
  answer: T,
): Promise<Static<T>> {
  const response = await fetch(`${required(env, 'BASE_URL')}${path}`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${required(env, 'API_KEY')}`,
      'content-type': 'application/json',
    },
    body: JSON.stringify(body),
  });
  const text = await response.text();
  if (!response.ok) throw new Error(`POST ${path} answered ${response.status}: ${text}`);
  return compile(answer)(parseJson(text), `answer to POST ${path}`);
}
