import type { Sandbox } from '@berth/sdk';
import ssh2, { type FileEntry, type SFTPWrapper } from 'ssh2';
import type { Report } from '../channel.ts';
import { statusOf } from './failure.ts';
import { SftpRequests } from './requests.ts';

const { STATUS_CODE } = ssh2.utils.sftp;

/** ssh2 has this without types: scp looks at the exit code, which its SFTP has no call for. */
interface Inside {
  readonly outgoing: { readonly id: number };
  readonly _protocol: { exitStatus(channel: number, code: number): void };
}

/** Answers that clients put into words of their own. */
const PLAIN: ReadonlySet<number> = new Set([STATUS_CODE.EOF, STATUS_CODE.NO_SUCH_FILE]);

/**
 * Serves a client of SFTP, so that images need no server. Requests are answered one after the
 * other: what a client sends ahead belongs to one file, in order.
 * @param report told why a request was refused: clients show a word of their own
 */
export async function serveSftp(
  sandbox: Sandbox,
  sftp: SFTPWrapper,
  report: Report,
): Promise<void> {
  const requests = new SftpRequests(sandbox);
  let last: Promise<void> = Promise.resolve();
  const answer = <T>(id: number, work: () => Promise<T>, tell: (result: T) => void): void => {
    last = last
      .then(async () => tell(await work()))
      .catch((error: unknown) => {
        const code = statusOf(error);
        if (!PLAIN.has(code)) report(error);
        sftp.status(id, code, (error as Error).message);
      });
  };
  answerPaths(sftp, requests, answer);
  answerHandles(sftp, requests, answer);
  sftp.on('error', report);
  await new Promise<void>((resolve) => {
    sftp.once('end', resolve);
    sftp.once('close', resolve);
  });
  await requests.abandon();
  await last;
  const inside = sftp as unknown as Inside;
  inside._protocol.exitStatus(inside.outgoing.id, 0);
  sftp.end();
}

type Answer = <T>(id: number, work: () => Promise<T>, tell: (result: T) => void) => void;

const nameOnly = (filename: string): FileEntry =>
  ({ filename, longname: filename, attrs: {} }) as FileEntry;

function answerPaths(sftp: SFTPWrapper, requests: SftpRequests, answer: Answer): void {
  const done = (id: number) => (): void => sftp.status(id, STATUS_CODE.OK);
  const attributes = (id: number) => (found: Parameters<SFTPWrapper['attrs']>[1]) =>
    sftp.attrs(id, found);
  const name = (id: number) => (path: string) => sftp.name(id, [nameOnly(path)]);
  sftp.on('STAT', (id, path) => answer(id, () => requests.stat(path, true), attributes(id)));
  sftp.on('LSTAT', (id, path) => answer(id, () => requests.stat(path, false), attributes(id)));
  sftp.on('SETSTAT', (id, path, given) => answer(id, () => requests.change(path, given), done(id)));
  sftp.on('REMOVE', (id, path) => answer(id, () => requests.remove(path, 'file'), done(id)));
  sftp.on('RMDIR', (id, path) => answer(id, () => requests.remove(path, 'directory'), done(id)));
  sftp.on('MKDIR', (id, path, given) =>
    answer(id, () => requests.makeDirectory(path, given), done(id)),
  );
  sftp.on('RENAME', (id, from, to) => answer(id, () => requests.rename(from, to), done(id)));
  sftp.on('REALPATH', (id, path) => answer(id, () => requests.realPath(path), name(id)));
  sftp.on('READLINK', (id, path) => answer(id, () => requests.readLink(path), name(id)));
  // ssh2 tells the link first, whatever its types say.
  sftp.on('SYMLINK', (id, path, target) => answer(id, () => requests.link(target, path), done(id)));
}

function answerHandles(sftp: SFTPWrapper, requests: SftpRequests, answer: Answer): void {
  const done = (id: number) => (): void => sftp.status(id, STATUS_CODE.OK);
  const end = (id: number): void => sftp.status(id, STATUS_CODE.EOF);
  sftp.on('OPEN', (id, path, flags, given) =>
    answer(
      id,
      () => requests.open(path, flags, given),
      (handle) => sftp.handle(id, handle),
    ),
  );
  sftp.on('OPENDIR', (id, path) =>
    answer(
      id,
      () => requests.openDirectory(path),
      (handle) => sftp.handle(id, handle),
    ),
  );
  sftp.on('READ', (id, handle, offset, length) =>
    answer(
      id,
      () => requests.read(handle, offset, length),
      (bytes) => (bytes === undefined ? end(id) : sftp.data(id, bytes)),
    ),
  );
  sftp.on('READDIR', (id, handle) =>
    answer(
      id,
      () => requests.entries(handle),
      (entries) => (entries.length === 0 ? end(id) : sftp.name(id, entries)),
    ),
  );
  sftp.on('WRITE', (id, handle, offset, bytes) =>
    answer(id, () => requests.write(handle, offset, bytes), done(id)),
  );
  sftp.on('FSTAT', (id, handle) =>
    answer(
      id,
      () => requests.statOpened(handle),
      (found) => sftp.attrs(id, found),
    ),
  );
  sftp.on('FSETSTAT', (id, handle, given) =>
    answer(id, () => requests.changeOpened(handle, given), done(id)),
  );
  sftp.on('CLOSE', (id, handle) => answer(id, () => requests.close(handle), done(id)));
}
