import type { Image } from '@berth/sdk';
import type { Command } from '@commander-js/extra-typings';
import { group, leaf } from '../command.ts';
import { opened } from '../context.ts';
import type { Output } from '../output.ts';
import { formatBytes } from '../text.ts';
import { readText } from '../values.ts';
import { UsageFailure } from '../failure.ts';

function show(output: Output, { info }: Image): void {
  const { progress } = info;
  output.record(
    info,
    [
      ['source', info.source],
      ['id', info.image_id],
      ['status', info.status],
      ['why', info.failure_message ?? ''],
      [
        'step',
        progress === undefined ? '' : `${progress.step} ${formatBytes(progress.bytes_done)}`,
      ],
      ['digest', info.digest ?? ''],
      ['private', info.private ? 'yes' : ''],
    ],
    info.image_id,
  );
}

/** Waits for a build, and shows how far it is. */
async function followBuild(image: Image, output: Output): Promise<void> {
  using progress = output.progress(`building ${image.info.source}`);
  let doneBytes = 0;
  const timer = setInterval(() => {
    const { bytes_done: done = 0, bytes_total: total = 0 } = image.info.progress ?? {};
    progress.expect(total > 0 ? { bytes: total } : {});
    progress.addBytes(Math.max(0, done - doneBytes));
    doneBytes = Math.max(doneBytes, done);
  }, 200);
  try {
    await image.ready({ timeoutMs: 3_600_000 });
  } finally {
    clearInterval(timer);
  }
}

const buildCommand = () =>
  leaf('build')
    .description('Build an image of a registry for sandboxes, and wait until it is ready.')
    .argument('<source>', 'such as docker.io/library/python:3.13')
    .option('--username <name>', 'for a private image')
    .option('--password-file <file>', 'its password or token, - for stdin')
    .option('--no-wait', 'do not wait until it is ready')
    .action(async (source, { username, passwordFile, wait, ...options }) => {
      const { output, berth } = await opened(options);
      if ((username === undefined) !== (passwordFile === undefined)) {
        const next = 'give both, or neither for a public image';
        throw new UsageFailure('--username and --password-file go together', next);
      }
      const password = passwordFile === undefined ? '' : (await readText(passwordFile)).trimEnd();
      const auth = username === undefined ? {} : { registry_auth: { username, password } };
      const image = await berth.images.build({ source, ...auth });
      if (wait) await followBuild(image, output);
      show(output, image);
    });

const getCommand = () =>
  leaf('get')
    .description('Show an image and how far its build is.')
    .argument('<id>', 'as build has printed it')
    .action(async (id, options) => {
      const { output, berth } = await opened(options);
      show(output, await berth.images.get(id));
    });

/** `berth image …` */
export const imageCommand = (): Command =>
  group('image', 'images of registries, built for sandboxes')
    .addCommand(buildCommand())
    .addCommand(getCommand());
