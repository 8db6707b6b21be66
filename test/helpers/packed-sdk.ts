import { execFile } from 'node:child_process';
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { build } from 'esbuild';

const run = promisify(execFile);
const sdk = join(import.meta.dirname, '../../clients/sdk');
/** The scripts of the package run under the Node of this checkout. */
const env = { ...process.env, PATH: `${dirname(process.execPath)}:${process.env['PATH'] ?? ''}` };

/**
 * An empty project outside this checkout, into which the client was installed as it is published.
 */
export class SdkProject {
  readonly directory: string;

  private constructor(directory: string) {
    this.directory = directory;
  }

  /** Packs the client and installs it. Without a registry: it needs no other package. */
  static async in(parent: string): Promise<SdkProject> {
    const directory = join(parent, 'project');
    await mkdir(directory);
    const packed = await run('npm', ['pack', '--json', '--pack-destination', parent], {
      cwd: sdk,
      env,
    });
    const [, filename = ''] = /"filename": "([^"]+)"/u.exec(packed.stdout) ?? [];
    await writeFile(join(directory, 'package.json'), '{"private":true,"type":"module"}');
    await run('npm', ['install', '--offline', '--no-audit', join(parent, filename)], {
      cwd: directory,
      env,
    });
    return new SdkProject(directory);
  }

  /** Puts a program into the project, made JavaScript as it is. @returns its path */
  async add(source: string, name: string): Promise<string> {
    const outfile = join(this.directory, name);
    const options = { format: 'esm', target: 'es2024', logLevel: 'error' } as const;
    await build({ entryPoints: [source], outfile, bundle: true, packages: 'external', ...options });
    return outfile;
  }

  /**
   * Builds the script that a page loads: the program together with the client, as bundlers make it.
   */
  async bundle(program: string): Promise<string> {
    const options = { format: 'esm', platform: 'browser', logLevel: 'error' } as const;
    const { outputFiles } = await build({
      entryPoints: [program],
      bundle: true,
      write: false,
      ...options,
    });
    return outputFiles[0]?.text ?? '';
  }

  /** Compiles a program against the declarations of the package. @throws with what is wrong */
  async checkTypes(source: string): Promise<void> {
    const name = join(this.directory, 'typed.ts');
    await writeFile(name, source);
    const compiler = join(import.meta.dirname, '../../node_modules/.bin/tsc');
    const options = ['--noEmit', '--strict', '--module', 'nodenext', '--target', 'es2024'];
    const lib = ['--lib', 'esnext,dom', '--types', ''];
    await run(compiler, [...options, ...lib, name], { cwd: this.directory, env }).catch(
      (error: unknown) => {
        throw new Error(String(Reflect.get(error as object, 'stdout')), { cause: error });
      },
    );
  }
}
