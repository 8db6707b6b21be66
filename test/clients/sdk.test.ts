/*
 * The TypeScript client, packed and installed as its users do it: one suite under two releases of
 * Node and in a browser; then a session that outlives everything between the client and its
 * process.
 */
import { execFile } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { json } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import anyTest, { type TestFn } from 'ava';
import { Berth, type Process } from '@berth/sdk';
import { runJob } from '../../examples/ci-job.ts';
import { CodeInterpreter } from '../../examples/code-interpreter.ts';
import { solve } from '../../examples/coding-agent.ts';
import { nightlyReport } from '../../examples/nightly-report.ts';
import { openApiDocument } from '../../control/http/openapi.ts';
import { routes } from '../../control/routes.ts';
import { KiB } from '../../shared/units.ts';
import type { SuiteReport } from '../fixtures/sdk-suite.ts';
import type { ApiClient } from '../helpers/api.ts';
import { openPage } from '../helpers/browser.ts';
import { CuttableProxy } from '../helpers/cuttable-proxy.ts';
import { isFull } from '../helpers/full.ts';
import { provideNode } from '../helpers/node-release.ts';
import { SdkProject } from '../helpers/packed-sdk.ts';
import { freePorts } from '../helpers/ports.ts';
import { containerSettings, sandboxSettings } from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';
import { waitFor } from '../helpers/wait.ts';

const OLDEST_NODE = '22.23.3';
const CHECKS_MIN = 20;
const RUN_MS_MAX = 170_000;

interface Context {
  readonly stack: Stack;
  readonly api: ApiClient;
  readonly proxies: readonly CuttableProxy[];
  readonly site: Server;
  readonly directory: AsyncDisposable & { readonly path: string };
  readonly project: SdkProject;
}
const test = anyTest.serial as TestFn<Context>;
const fixture = (name: string): string => join(import.meta.dirname, '../fixtures', name);

test.before(async (t) => {
  const site = createServer();
  site.listen(0, '127.0.0.1');
  await once(site, 'listening');
  const [controlPort = 0, agentPort = 0] = await freePorts(2);
  const control = await CuttableProxy.to(controlPort);
  const agent = await CuttableProxy.to(agentPort);
  const directory = await temporaryDirectory();
  Object.assign(t.context, { site, directory, proxies: [control, agent] });
  const [stack, project] = await Promise.all([
    Stack.start({
      ...(isFull ? sandboxSettings() : containerSettings()), // Machines take longer.
      CONTROL_PORT: String(controlPort),
      AGENT_PORT: String(agentPort),
      PUBLIC_BASE_URL: `http://127.0.0.1:${control.port}`,
      AGENT_PUBLIC_URL: `http://127.0.0.1:${agent.port}`,
      ALLOWED_ORIGINS: originOf(site),
    }),
    SdkProject.in(directory.path),
  ]);
  Object.assign(t.context, { stack, project, api: await stack.newClient() });
});

test.after.always(async (t) => {
  const { stack, site, directory, proxies } = t.context;
  await stack.stop();
  for (const proxy of proxies) await proxy[Symbol.asyncDispose]();
  site.close();
  await directory[Symbol.asyncDispose]();
});

const originOf = (site: Server): string =>
  `http://127.0.0.1:${(site.address() as AddressInfo).port}`;

/** The suite under a release of Node. @returns what it checked */
async function runUnder(
  node: string,
  { project, api }: Context,
): Promise<SuiteReport & { version: string }> {
  const { stdout } = await promisify(execFile)(node, [join(project.directory, 'main.js')], {
    cwd: project.directory,
    env: { BASE_URL: api.baseUrl, API_KEY: api.key },
    timeout: RUN_MS_MAX,
  });
  return JSON.parse(stdout) as SuiteReport & { version: string };
}

interface Report {
  readonly found?: SuiteReport;
  readonly error?: string;
}

/** The suite in a browser, in a page of another origin than the API's. */
async function runInBrowser({ project, api, site, directory }: Context): Promise<Report> {
  const script = await project.bundle(join(project.directory, 'suite.js'));
  const options = JSON.stringify({ baseUrl: api.baseUrl, apiKey: api.key });
  const page = `<!doctype html><script type="module">
    import { runSuite } from './suite.js';
    const report = (result) => fetch('/report', { method: 'POST', body: JSON.stringify(result) });
    runSuite(${options}).then((found) => report({ found }), (error) => report({ error: String(error) }));
  </script>`;
  const reported = new Promise<Report>((resolve, reject) => {
    site.on('request', (request: IncomingMessage, response: ServerResponse) => {
      if (request.method === 'POST') json(request).then(resolve as (body: unknown) => void, reject);
      const isScript = request.url === '/suite.js';
      response.setHeader('content-type', isScript ? 'text/javascript' : 'text/html');
      response.end(isScript ? script : request.url === '/' ? page : '');
    });
  });
  await using _browser = await openPage(`${originOf(site)}/`, directory.path);
  return await Promise.race([
    reported,
    sleep(RUN_MS_MAX, { error: 'the page said nothing' }, { ref: false }),
  ]);
}

/** The operations of the API that none of the requests was for. */
function operationsWithout(requests: readonly string[]): string[] {
  const { paths = {} } = openApiDocument(routes, 'https://berth.example') as {
    paths?: Record<string, Record<string, { operationId?: string }>>;
  };
  return Object.entries(paths).flatMap(([path, operations]) => {
    const pattern = RegExp.escape(path).replaceAll(/\\\{\w+\\\}/gu, '[^/]+');
    return Object.entries(operations).flatMap(([method, { operationId }]) => {
      const isIt = new RegExp(`^${method.toUpperCase()} ${pattern}$`, 'u');
      const isForOthers = operationId === undefined || operationId === 'joinHost';
      const isCalled = isForOthers || requests.some((each) => isIt.test(each));
      return isCalled ? [] : [operationId];
    });
  });
}

test('the packed client makes every call of the API, and does all else, under Node 22, Node 24 and in Chromium', async (t) => {
  const { project } = t.context;
  await project.add(fixture('sdk-suite.ts'), 'suite.js');
  await project.add(fixture('sdk-main.ts'), 'main.js');
  const [oldest, current, browser] = await Promise.all([
    provideNode(OLDEST_NODE).then((node) => runUnder(node, t.context)),
    runUnder(process.execPath, t.context),
    runInBrowser(t.context),
  ]);
  t.is(oldest.version, OLDEST_NODE);
  t.regex(current.version, /^24\./u);
  t.is(browser.error, undefined);
  t.true(current.checks.length >= CHECKS_MIN, current.checks.join());
  t.deepEqual(oldest.checks, current.checks);
  t.deepEqual(browser.found?.checks, current.checks);
  t.deepEqual(operationsWithout(current.requests), []);
});

test('the packed client brings its types along', async (t) => {
  const { project } = t.context;
  await t.notThrowsAsync(
    project.checkTypes(`
      import { Berth, ConflictError, type SandboxInfo } from '@berth/sdk';
      const berth = new Berth({ baseUrl: '', apiKey: '' });
      const box = await berth.sandboxes.create({ vcpu_count: 1 });
      const status: SandboxInfo['status'] = box.status;
      for await (const { stream, bytes } of await box.start('ls')) {
        const _: ['stdout' | 'stderr', number] = [stream, bytes.length];
      }
      try { await box.delete(); } catch (error) { if (error instanceof ConflictError) error.status; }
      // @ts-expect-error there is no such field
      await berth.disks.create({ nmae: 'x' });
      export { status };
    `),
  );
});

test('the examples do what they say', async (t) => {
  const { api } = t.context;
  const berth = new Berth({ baseUrl: api.baseUrl, apiKey: api.key });
  const interpret = async (): Promise<void> => {
    await using interpreter = await CodeInterpreter.create(berth);
    t.is(await interpreter.run('x = 20\nprint(x + 1)'), '21\n');
    await interpreter.rest();
    t.is(await interpreter.run('print(x * 2)'), '40\n');
    t.regex(await interpreter.run('1 / 0'), /ZeroDivisionError/u);
  };
  const solveTask = async (): Promise<void> => {
    const outcomes = await solve(berth, {
      prepare: 'echo "echo 3" > sum.sh',
      test: '[ "$(sh sum.sh)" = 4 ]',
      attempts: [
        { name: 'wrong', command: 'echo "echo 5" > sum.sh' },
        { name: 'right', command: 'echo "echo 4" > sum.sh' },
      ],
    });
    t.deepEqual(
      outcomes.map(({ name, passed }) => [name, passed]),
      [
        ['wrong', false],
        ['right', true],
      ],
    );
    t.regex(outcomes[1]?.diff ?? '', /^\+echo 4$/mu);
  };
  const runJobs = async (): Promise<void> => {
    const steps = [
      { name: 'build', command: 'echo built >> product' },
      { name: 'test', command: 'grep built product && false' },
      { name: 'deploy', command: 'touch deployed' },
    ];
    const first = await runJob(berth, 'shop', '17', steps);
    const again = await runJob(berth, 'shop', '17', steps);
    t.deepEqual([first.failed, again.failed], ['test', 'test']);
    const log = await (await fetch(again.logUrl)).text();
    t.is(log, '== build\n== test\nbuilt\n');
  };
  const report = async (): Promise<void> => {
    const disk = await berth.disks.create({ name: 'night-web' });
    await disk.exec('mkdir logs; printf "ok\\nERROR disk full\\n" > logs/a; echo FATAL > logs/b');
    await berth.disks.create({ name: 'night-quiet' });
    const lines = (await nightlyReport(berth, 'night-')).split('\n');
    t.is(lines[0], 'night-web: 2 matches');
    t.true(lines.includes('  logs/a:2: ERROR disk full'));
  };
  await Promise.all([interpret(), solveTask(), runJobs(), report()]);
});

/** Sends random bytes for as long as it is not stopped, and compares what comes back. */
class EndlessEcho {
  received = 0;
  readonly #process: Process;
  readonly #sent = createHash('sha256');
  readonly #came = createHash('sha256');
  readonly #done: Promise<unknown>;
  #isStopped = false;

  constructor(process: Process) {
    this.#process = process;
    this.#done = Promise.all([this.#write(), this.#read()]);
    this.#done.catch(() => undefined); // Told by `end`.
  }

  /** Waits until bytes that were sent from now on have come back. */
  async goesOn(): Promise<void> {
    const target = this.received + 256 * KiB;
    await waitFor('the session to go on', async () => this.received > target, RUN_MS_MAX);
  }

  /** @returns the checksums of both ways */
  async end(): Promise<[string, string]> {
    this.#isStopped = true;
    await this.#done;
    return [this.#sent.digest('hex'), this.#came.digest('hex')];
  }

  async #write(): Promise<void> {
    while (!this.#isStopped) {
      const piece = randomBytes(1 + Math.floor(Math.random() * 30_000));
      this.#sent.update(piece);
      await this.#process.write(piece);
      await sleep(2);
    }
    this.#process.closeInput();
  }

  async #read(): Promise<void> {
    for await (const { offset, bytes } of this.#process) {
      if (offset !== this.received) throw new Error(`${offset} came after ${this.received}`);
      this.#came.update(bytes);
      this.received += bytes.length;
    }
  }
}

test('a session survives dead control nodes and agents, a cut network and a pause, both ways', async (t) => {
  const { stack, api, proxies } = t.context;
  const berth = new Berth({ baseUrl: api.baseUrl, apiKey: api.key });
  const sandbox = await berth.sandboxes.create({ mem_size_mib: 256 });
  const process = await sandbox.start('cat');
  const echo = new EndlessEcho(process);
  await echo.goesOn();

  await stack.control.stop('SIGKILL');
  await echo.goesOn(); // The session does not need it while it is there.
  await stack.agent.stop('SIGKILL');
  await sleep(500);
  await Promise.all([stack.startControl(), stack.startAgent()]);
  await echo.goesOn();

  for (const proxy of proxies) proxy.cut();
  await sleep(isFull ? 60_000 : 2_000);
  for (const proxy of proxies) proxy.mend();
  await echo.goesOn();
  t.true(proxies.some(({ cuts }) => cuts > 0));

  await sandbox.pause();
  await sleep(1_000);
  await sandbox.resume();
  await echo.goesOn();

  // All of it at once, again.
  for (const proxy of proxies) proxy.cut();
  await stack.agent.stop('SIGKILL');
  for (const proxy of proxies) proxy.mend();
  await stack.startAgent();
  await echo.goesOn();

  const [sent, came] = await echo.end();
  t.is(came, sent);
  t.like(await process.exit, { status: 'completed', exitCode: 0 });
  t.log(`${echo.received} bytes each way`);
  await sandbox.delete();
});
