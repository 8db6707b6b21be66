import { readFileSync } from 'node:fs';
import { flushCompileCache } from 'node:module';
import { parseArgs, parseEnv } from 'node:util';
import { toError } from '../errors.ts';
import {
  isForeign,
  isSetting,
  type Part,
  suspectInEnvironment,
  unknownInEnvironment,
  unknownInFile,
} from './known-settings.ts';
import { ConfigurationError, refuseProblems, type SettingTexts } from './read-settings.ts';

export interface Service<Config> {
  readonly name: Part;
  /** @throws ConfigurationError */
  readonly read: (texts: SettingTexts) => Config;
  /** Reads the files that the configuration names. @throws Error when one does not fit */
  readonly check?: (config: Config) => Promise<void>;
  readonly start: (config: Config) => Promise<void>;
}

/** Read before this process could set it. */
const ENVIRONMENT_ONLY = 'UV_THREADPOOL_SIZE';
/** Makes share links and connection URLs: a secret that agents must not know. */
const OF_CONTROL_ALONE = 'SIGNING_KEYS';

/**
 * Runs a service as its command line says: `--config <file>` reads settings (`NAME=value` lines)
 * before those of the environment, `--check` reads the configuration, says what is wrong with it,
 * and ends with exit code 0 or 1.
 */
export function runService<Config>(service: Service<Config>): void {
  run(service).catch((error: unknown) => {
    for (const line of linesOf(error)) process.stderr.write(`${service.name}: ${line}\n`);
    process.exit(1);
  });
}

async function run<Config>({ name, read, check, start }: Service<Config>): Promise<void> {
  const { values } = parseArgs({
    options: { config: { type: 'string' }, check: { type: 'boolean', default: false } },
  });
  const config = read(takeTexts(name, values.config));
  await check?.(config);
  if (values.check) process.stdout.write(`${name}: the configuration is valid\n`);
  else {
    // All modules are loaded. Node would keep their part of its compile cache in memory until the
    // process ends, and write new parts only then.
    flushCompileCache();
    await start(config);
  }
}

/**
 * Takes the settings out of the environment and reads the configuration file. From here on nothing
 * reads `process.env`, and no library finds a secret there: not for a program or a thread that it
 * starts, nor for a report.
 * @throws ConfigurationError, and Error when the file cannot be read
 */
function takeTexts(part: Part, file: string | undefined): SettingTexts {
  const variables = { ...process.env };
  const names = Object.keys(variables);
  for (const problem of suspectInEnvironment(names)) warn(part, problem);
  refuseProblems(unknownInEnvironment(names));
  for (const name of names) {
    if (isSetting(name) && name !== ENVIRONMENT_ONLY) delete process.env[name];
  }
  const texts = file === undefined ? {} : readConfigurationFile(file);
  for (const [name, text] of Object.entries(texts)) if (isForeign(name)) process.env[name] = text;
  const all = { ...variables, ...texts };
  if (part === 'agent' && all[OF_CONTROL_ALONE] !== undefined) {
    warn(part, `${OF_CONTROL_ALONE} is not for agents: remove it from this host`);
  }
  return all;
}

const warn = (part: Part, problem: string): void => {
  process.stderr.write(`${part}: warning: ${problem}\n`);
};

/** @throws Error when the file cannot be read, ConfigurationError when it has unknown settings */
function readConfigurationFile(path: string): Record<string, string> {
  let texts: NodeJS.Dict<string>;
  try {
    texts = parseEnv(readFileSync(path, 'utf8'));
  } catch (error) {
    const message = `the configuration file cannot be read: ${toError(error).message}`;
    throw new Error(message, { cause: error });
  }
  const problems = unknownInFile(Object.keys(texts)).map((problem) => `${path}: ${problem}`);
  const isMisplaced = texts[ENVIRONMENT_ONLY] !== undefined;
  if (isMisplaced) problems.push(`${ENVIRONMENT_ONLY} must be set in the environment`);
  refuseProblems(problems);
  return texts as Record<string, string>;
}

const linesOf = (error: unknown): readonly string[] =>
  error instanceof ConfigurationError && process.argv.includes('--check')
    ? error.problems
    : [toError(error).message];
