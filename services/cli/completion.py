"""`pegaflow completion`: what the shell offers behind `pegaflow` and a tab.

bash   eval "$(pegaflow completion bash)"
zsh    pegaflow completion zsh > "${fpath[1]}/_pegaflow"
fish   pegaflow completion fish > ~/.config/fish/completions/pegaflow.fish
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

NAME = "completion"
HELP = "completion for bash, zsh or fish"


class Place(NamedTuple):
    """What may stand behind the words of `path`: other words, and options with their help."""

    path: tuple[str, ...]
    words: dict[str, str]
    options: dict[str, str]


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pegaflow.services.cli.__main__ import build  # it imports this module

    print(SHELLS[args.shell](places(build())), end="")
    return 0


def places(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> list[Place]:
    """The whole tree of a command line, outermost first."""
    words: dict[str, str] = {}
    options: dict[str, str] = {}
    below: list[Place] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for word, one in action.choices.items():
                words[word] = helps.get(word, "")
                below += places(one, (*path, word))
        elif action.option_strings and action.help != argparse.SUPPRESS:
            options.update(dict.fromkeys((name for name in action.option_strings if name.startswith("--")), action.help or ""))
        elif action.choices:
            words.update(dict.fromkeys(map(str, action.choices), ""))
    return [Place(path, words, options), *below]


def bash(found: list[Place]) -> str:
    cases = "\n".join(f"    '{' '.join(one.path)}') words='{' '.join([*one.words, *one.options])}' ;;" for one in found)
    return f"""_pegaflow() {{
  local path='' words='' word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in -*) continue ;; esac
    case " {_paths(found)} " in *" ${{path:+$path/}}$word "*) path="${{path:+$path/}}$word" ;; esac
  done
  case "${{path//\\// }}" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _pegaflow pegaflow
"""


def _paths(found: list[Place]) -> str:
    return " ".join("/".join(one.path) for one in found if one.path)


def zsh(found: list[Place]) -> str:
    """Through bash's function, which zsh can run."""
    return f"#compdef pegaflow\nautoload -U +X bashcompinit && bashcompinit\n{bash(found)}"


def fish(found: list[Place]) -> str:
    lines = ["complete -c pegaflow -f"]
    for one in found:
        seen = " ".join(one.path)
        not_yet = " ".join(one.words)
        condition = f"__fish_seen_subcommand_from {one.path[-1]}" if one.path else "__fish_use_subcommand"
        if one.path and one.words:
            condition += f"; and not __fish_seen_subcommand_from {not_yet}"
        for word, text in one.words.items():
            lines.append(f"complete -c pegaflow -n '{condition}' -a '{word}' -d {_quoted(text or seen)}")
        for name, text in one.options.items():
            lines.append(f"complete -c pegaflow -n '{condition}' -l {name[2:]} -d {_quoted(text)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("%%", "%").replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: dict[str, Callable[[list[Place]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
