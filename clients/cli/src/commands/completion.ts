import { Argument } from '@commander-js/extra-typings';
import { leaf } from '../command.ts';

/*
 * Bash splits words at colons too, so `disk:path` comes in three and only its last part is
 * replaced.
 */
const BASH = `_berth() {
  local -a words=() lines=()
  local word line value prefix=
  for word in "\${COMP_WORDS[@]:1:COMP_CWORD}"; do
    if [[ \${#words[@]} -gt 0 && ( $word == : || \${words[-1]} == *: ) ]]; then
      words[-1]+=$word
    else
      words+=("$word")
    fi
  done
  [[ \${words[-1]} == *:* && $COMP_WORDBREAKS == *:* ]] && prefix=\${words[-1]%:*}:
  COMPREPLY=()
  mapfile -t lines < <(berth __complete -- "\${words[@]}" 2>/dev/null)
  for line in "\${lines[@]}"; do
    if [[ $line == :files ]]; then
      mapfile -t -O "\${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "\${words[-1]}")
      compopt -o filenames
      continue
    fi
    value=\${line%%$'\\t'*}
    [[ $value == *: || $value == */ ]] && compopt -o nospace
    printf -v value %q "\${value#"$prefix"}"
    COMPREPLY+=("$value")
  done
}
complete -F _berth berth
`;

const ZSH = `#compdef berth
_berth() {
  local -a open=() openShown=() whole=() wholeShown=()
  local line value shown
  for line in "\${(@f)$(berth __complete -- "\${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
    [[ -z $line ]] && continue
    if [[ $line == :files ]]; then
      _files
      continue
    fi
    value=\${line%%$'\\t'*}
    shown=\${line/$'\\t'/  -- }
    if [[ $value == *: || $value == */ ]]; then
      open+=("$value") openShown+=("$shown")
    else
      whole+=("$value") wholeShown+=("$shown")
    fi
  done
  (( $#open )) && compadd -S '' -d openShown -a open
  (( $#whole )) && compadd -d wholeShown -a whole
}
if [[ $funcstack[1] == _berth ]]; then _berth "$@"; else compdef _berth berth; fi
`;

const FISH = `function __berth_complete
    set -l before (commandline -opc)
    set -l word (commandline -ct)
    for line in (berth __complete -- $before[2..] "$word" 2>/dev/null)
        if test "$line" = :files
            __fish_complete_path "$word"
        else
            printf '%s\\n' $line
        end
    end
end
complete -c berth -f -a '(__berth_complete)'
`;

const SCRIPTS = { bash: BASH, zsh: ZSH, fish: FISH } as const;

export const completionCommand = () =>
  leaf('completion')
    .description(
      `Print a shell's completion script. Load it in the shell's start-up file:

  bash  eval "$(berth completion bash)"
  zsh   eval "$(berth completion zsh)"        after compinit
  fish  berth completion fish | source`,
    )
    .addArgument(new Argument('<shell>', 'which shell').choices(['bash', 'zsh', 'fish'] as const))
    .action((shell) => {
      process.stdout.write(SCRIPTS[shell]);
    });
