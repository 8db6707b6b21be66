/** Next steps after an error, by its code (docs: api.md, process-connections.md, sdk.md). */
const NEXT_STEPS: Readonly<Record<string, string>> = {
  unauthorized: 'The server has no valid API key: ask the user to check it.',
  not_found: 'Look for the right id with sandbox_list or disk_list; for a file, with file_list.',
  NoSuchKey: 'Look for the right path with disk_exec (ls).',
  sandbox_not_running:
    'sandbox_get shows its status: sandbox_resume continues a paused one, sandbox_start boots a stopped one.',
  sandbox_terminated: 'It is stopped: boot it with sandbox_start.',
  sandbox_start_conflict: 'It is coming up: sandbox_wait for running, then try again.',
  sandbox_pausing: 'It is being paused: sandbox_wait for paused, then sandbox_resume.',
  sandbox_stopping: 'It is being stopped: sandbox_wait for stopped, then sandbox_start.',
  sandbox_has_forks: 'Delete its forks first.',
  sandbox_name_conflict: 'Choose another name, or use the sandbox that has it.',
  sandbox_failed:
    'sandbox_get says why. sandbox_start tries again; else delete it and create another.',
  disk_conflict: 'Choose another name, or use the disk that has it.',
  process_not_found:
    'No such process, or it ended more than 15 minutes ago: start it again with process_start.',
  process_lost: 'The sandbox was stopped or is gone, and the process with it.',
  process_failed: 'Check cwd, and that the image has /bin/sh.',
  input_closed: 'Its input has ended: start another process.',
  input_conflict: 'Somebody else writes to it too: look at its output, then write again.',
  output_lost: 'Output was written faster than it was read: send it to a file.',
  is_a_directory: 'Use file_list, or a path in it.',
  not_a_directory: 'A part of the path is a file: look with file_stat.',
  not_a_file: 'Only regular files can be read and written.',
  file_exists: 'Pass overwrite, or choose another path.',
  directory_not_empty: 'Pass recursive to remove all that is in it.',
  other_file_system: 'Copy it with sandbox_run (cp, then rm).',
  no_space: 'Free space with file_delete, or use a disk.',
  permission_denied: 'Nobody may change this path; choose another.',
  rate_limited: 'Do less at once, and try again in some seconds.',
  max_concurrent_execs_reached: 'End processes that are not needed, and try again.',
  no_capacity: 'Try again in some seconds, or ask for less memory.',
  runtime_retryable: 'Try again in some seconds.',
  unavailable: 'Try again in some seconds.',
  host_full: 'Try again later; the operator has to free storage.',
  connection_failed: 'The server cannot be reached: try again, or ask the user to check it.',
  call_timeout: 'It may still be going on: look at it before you do it again.',
  outcome_unknown: 'It may have been done or not: look before you do it again.',
  timeout: 'It took too long: use a sandbox and process_start for what takes minutes.',
  not_enabled: 'This server cannot do it: ask for less where that is said, or ask the operator.',
};

const codeOf = (error: Error): string | undefined => {
  const code: unknown = Reflect.get(error, 'code');
  return typeof code === 'string' ? code : undefined;
};

/** An error as a model is told it: what happened, its code, and what to do next. */
export function explain(thrown: unknown): string {
  const error = thrown instanceof Error ? thrown : new Error(String(thrown));
  const code = codeOf(error);
  const what = code === undefined ? error.message : `${error.message} (${code})`;
  const next = code === undefined ? undefined : NEXT_STEPS[code];
  return next === undefined ? what : `${what}. ${next}`;
}
