# Sourced by the set-up scripts: messages and progress of long steps.

say() { printf 'berth: %s\n' "$*" >&2; }

fail() {
  say "$*"
  exit 1
}

_ticker=
stop_ticker() {
  [ -z "$_ticker" ] || kill "$_ticker" 2>/dev/null || true
  _ticker=
}
trap stop_ticker EXIT

# The ticker runs in the background instead of the command, because background commands ignore
# Ctrl-C. Its last `sleep` outlives it by up to a second and must hold no lock or pipe of the caller.
start_ticker() {
  local what=$1 start=$SECONDS seconds
  while sleep 1 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
    seconds=$((SECONDS - start))
    if [ -t 2 ]; then
      printf '\rberth: %s … %d s' "$what" "$seconds" >&2
    elif [ $((seconds % 10)) -eq 0 ]; then
      say "$what … $seconds s"
    fi
  done 8>&- 9>&- &
  _ticker=$!
}

# step <what> <log file> <command> [argument …]: runs the command, its output in the log.
step() {
  local what=$1 log=$2 start=$SECONDS status
  shift 2
  [ -t 2 ] && printf 'berth: %s …' "$what" >&2 || say "$what …"
  start_ticker "$what"
  set +e
  (set -e; "$@") >>"$log" 2>&1
  status=$?
  set -e
  stop_ticker
  [ ! -t 2 ] || printf '\r' >&2
  if [ "$status" -ne 0 ]; then
    tail -n 20 "$log" >&2
    fail "$what failed (exit code $status); the whole log is $log"
  fi
  say "$what: done in $((SECONDS - start)) s"
}
