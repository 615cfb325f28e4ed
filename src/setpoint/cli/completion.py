"""`setpoint completion`: the script that makes a shell complete presets, fields and variants."""

from __future__ import annotations

import re

from setpoint.cli.options import Arguments, Command
from setpoint.config import SetpointError, did_you_mean

# NAME stands for the command that is completed, FUNCTION for a name in the shell; what is typed
# as the command is called with `__complete`.
BASH = """_FUNCTION() {
  local found
  COMPREPLY=()
  while IFS= read -r found; do
    COMPREPLY+=("$(printf %q "$found")")
  done < <("${COMP_WORDS[0]}" __complete "$COMP_CWORD" "${COMP_WORDS[@]:1}" 2>/dev/null)
  [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=:] ]] && compopt -o nospace
  return 0
}
complete -o default -o bashdefault -F _FUNCTION NAME
"""
ZSH = """#compdef NAME
_FUNCTION() {
  local -a found open
  found=("${(@f)$("$words[1]" __complete $((CURRENT - 1)) "${(@)words[2,-1]}" 2>/dev/null)}")
  # After `section.field=` comes the value, and after `main:` the preset, without a space.
  open=(${(M)found:#*[=:]})
  found=(${found:#*[=:]})
  (( $#open )) && compadd -S '' -- $open
  (( $#found )) && compadd -- $found
  _files
}
if [[ $funcstack[1] == _FUNCTION ]]; then
  _FUNCTION "$@"
else
  compdef _FUNCTION NAME
fi
"""
FISH = """function __FUNCTION_complete
  set -l before (commandline -opc)
  $before[1] __complete (count $before) $before[2..-1] (commandline -ct) 2>/dev/null
end
complete -c NAME -a '(__FUNCTION_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
COMMAND = Command(
    "completion",
    "SHELL",
    "Print the script that completes commands, presets, modifiers, files, run directories, fields\n"
    "and their values in a shell. SHELL is bash, zsh or fish.",
    [],
    [
        ('eval "$(setpoint completion bash)"', "for bash, in ~/.bashrc"),
        ('eval "$(setpoint completion zsh)"', "for zsh, in ~/.zshrc, after compinit"),
        ("setpoint completion fish | source", "for fish, in ~/.config/fish/config.fish"),
    ],
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Print the script for one shell."""
    shell = arguments.positional[0]
    if shell not in SCRIPTS:
        meant = did_you_mean(shell, SCRIPTS, " ")
        known = ", ".join(SCRIPTS)
        raise SetpointError(f"there is no completion for {shell!r}.{meant} Shells: {known}")
    name = arguments.command.program.command
    script = SCRIPTS[shell].replace("FUNCTION", re.sub(r"\W", "_", name))
    print(script.replace("NAME", name), end="")
    return 0
