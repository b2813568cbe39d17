"""Tab completion of `posttrain`: stages, their options and keys, recipes after `--config`.

eval "$(posttrain completion bash)"      in ~/.bashrc; zsh likewise
posttrain completion fish | source       in ~/.config/fish/config.fish
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from posttrain.config.load import keys_of_recipe
from posttrain.config.recipe_files import recipe_names
from posttrain.config.schemas import stage_schemas
from posttrain.errors import ConfigError

SHELLS = ("bash", "zsh", "fish")
# options of every stage that takes a recipe
_OF_RECIPES = ("--config", "--dry-run", "--print-config")
_OPTION = re.compile(r"""add_argument\(\s*"(--[\w-]+)\"""")
# bash ends words at `=` and `:`; a key is completed up to its `=`, without a blank
_BASH = """\
_posttrain() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "STAGES --help --list --recipes --version" -- "$word"))
    elif [ "$before" = --config ]; then
        COMPREPLY=($(compgen -W "RECIPES" -- "$word") $(compgen -f -X '!*.y*ml' -- "$word"))
    elif [ "$before" = = ] || [ "$word" = = ]; then
        COMPREPLY=($(compgen -f -- "${word#=}"))
    elif [ "${word#-}" != "$word" ]; then
        local options="$(posttrain completion options "${COMP_WORDS[1]}" 2>/dev/null)"
        COMPREPLY=($(compgen -W "$options" -- "$word"))
    else
        local keys="$(posttrain completion keys "${COMP_WORDS[1]}" 2>/dev/null)"
        COMPREPLY=($(compgen -W "$keys" -- "$word"))
        [ "${#COMPREPLY[@]}" -gt 0 ] && compopt -o nospace 2>/dev/null
        [ "${#COMPREPLY[@]}" -eq 0 ] && COMPREPLY=($(compgen -f -- "$word"))
    fi
}
complete -F _posttrain posttrain
"""
# zsh's imitation of bash's completion knows no `compopt`: a key would get a blank after its `=`
_ZSH = """\
autoload -U +X compinit && compinit -u
_posttrain() {
    if (( CURRENT == 2 )); then
        compadd -- STAGES --help --list --recipes --version
    elif [[ $words[CURRENT-1] == --config ]]; then
        compadd -- RECIPES
        _files -g '*.y(a|)ml'
    elif [[ $PREFIX == -* ]]; then
        compadd -- ${(f)"$(posttrain completion options $words[2] 2>/dev/null)"}
    elif [[ $PREFIX == *=* ]]; then
        compset -P '*='
        _files
    else
        compadd -S '' -- ${(f)"$(posttrain completion keys $words[2] 2>/dev/null)"} || _files
    fi
}
compdef _posttrain posttrain
"""
_FISH = """\
complete -c posttrain -f -n __fish_use_subcommand -a 'STAGES'
complete -c posttrain -f -n __fish_use_subcommand -l help
complete -c posttrain -f -n __fish_use_subcommand -l list
complete -c posttrain -f -n __fish_use_subcommand -l recipes
complete -c posttrain -f -n __fish_use_subcommand -l version
complete -c posttrain -n 'not __fish_use_subcommand' -l config -r -a 'RECIPES'
complete -c posttrain \\
    -n 'not __fish_use_subcommand; and not string match -q -- "-*" (commandline -ct)' \\
    -a '(posttrain completion keys (commandline -opc)[2] 2>/dev/null)'
complete -c posttrain \\
    -n 'not __fish_use_subcommand; and string match -q -- "-*" (commandline -ct)' \\
    -a '(posttrain completion options (commandline -opc)[2] 2>/dev/null)'
"""


def completion(
    arguments: Sequence[str], commands: Sequence[str], scripts: Mapping[str, Path]
) -> str:
    """Completion script of a shell; with `keys STAGE` or `options STAGE` those, one a line.

    Args:
        arguments: words after `posttrain completion`.
        commands: names of all stages and of what else `posttrain` does.
        scripts: stage → its script, which is read and not run.

    Raises:
        ConfigError: the shell is none of `SHELLS`.
    """
    if len(arguments) == 2 and arguments[0] == "keys":
        schema = stage_schemas().get(arguments[1])
        keys = [] if schema is None else [*keys_of_recipe(schema)]
        return "".join(f"{key}=\n" for key in keys)
    if len(arguments) == 2 and arguments[0] == "options":
        script = scripts.get(arguments[1])
        return "" if script is None else "".join(f"{option}\n" for option in _options_of(script))
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise ConfigError(f"completion takes a shell: {', '.join(SHELLS)}")
    script = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[arguments[0]]
    script = script.replace("STAGES", " ".join(commands))
    return script.replace("RECIPES", " ".join(recipe_names()))


def _options_of(script: Path) -> list[str]:
    """Options of a stage, as its script adds them to its parser."""
    source = script.read_text("utf-8")
    options = [*_OPTION.findall(source), "--help"]
    if "recipe_parser(" in source:
        options += _OF_RECIPES
    return list(dict.fromkeys(options))
