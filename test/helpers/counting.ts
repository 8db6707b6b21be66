/**
 * A command for a sandbox that counts in memory until it is killed, and appends each number to a
 * file: readers never see half of a line that is appended. It waits without starting a program,
 * since under emulation each start takes a processor for some 30 ms.
 * @param seconds between two numbers
 */
const countInto = (path: string, seconds: number): string =>
  `bash -c 'mkfifo ${path}.clock; exec 3<> ${path}.clock; while :; do echo $((++i)) >> ${path}; read -rt ${seconds} -u 3; done'`;

/** A command that leaves a process which does {@link countInto}, in a file that begins with 0. */
export const beginCounting = (path: string, seconds: number): string =>
  `echo 0 > ${path}; setsid ${countInto(path, seconds)} > /dev/null 2>&1 < /dev/null &`;

/** A command that prints the last number that was counted into the file. */
export const lastCount = (path: string): string => `tail -n 1 ${path}`;
