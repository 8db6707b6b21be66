#!/usr/bin/env bash
# subject.sh OUT TARGET-OBJECT COMMON-OBJECTS OBJECT…: joins the objects of a subject into one that
# calls only what the target has, and whose variables have sections of their own (fuzz.c resets them).
set -euo pipefail
out=$1 target=$2
read -ra common <<<"$3"
shift 3

ld -r -o "$out.all" "$@"
nm --defined-only "$target" "${common[@]}" |
  sed -n 's/^.* [TW] fake_\(.*\)$/\1 fake_\1/p' | sort -u >"$out.calls"
# What it has itself under a name of the system must not take the system's place.
nm --defined-only "$out.all" | sed -n 's/^.* T \(main\|mmap\|mmap64\)$/\1 subject_\1/p' >>"$out.calls"
objcopy --redefine-syms="$out.calls" \
  --rename-section .data=subject_data --rename-section .bss=subject_bss "$out.all" "$out.new"

known=$(nm --defined-only "$target" | awk '{ print $NF }')
reaching=$(nm -u "$out.new" | awk '{ print $NF }' |
  grep -vE '^(fake_|__asan_|__ubsan_|__sanitizer_|__sancov_|__(start|stop)_)' |
  grep -vxF -f harmless.txt | grep -vxF "$known" || true)
if [ -n "$reaching" ]; then
  echo "$out: no input may call these: ${reaching//$'\n'/ }" >&2
  echo 'Give the target a fake of each, or list it in harmless.txt if it only reads memory.' >&2
  exit 1
fi
mv "$out.new" "$out"
