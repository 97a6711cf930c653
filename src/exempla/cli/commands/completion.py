"""Print a completion script for your shell, made from the commands themselves.

bash:  exempla completion bash > ~/.local/share/bash-completion/completions/exempla
zsh:   exempla completion zsh  > ~/.zfunc/_exempla      (with ~/.zfunc in your fpath)
fish:  exempla completion fish > ~/.config/fish/completions/exempla.fish
"""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from typing import Any

HELP = "print a completion script for bash, zsh or fish"


def add_arguments(parser: ArgumentParser) -> None:
    """The shell."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(options: Namespace) -> int:
    """Print the script."""
    words = describe(options.parser)
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell](words))
    return 0


Commands = dict[str, tuple[str, list[tuple[str, str, list[str]]]]]
"""command → (help, [(option or "", help, choices)])"""


def describe(parser: ArgumentParser) -> Commands:
    """Every command with its options, read off the parser.

    >>> from exempla.cli.main import build_parser
    >>> "--out" in [option for option, _, _ in describe(build_parser())["demo"][1]]
    True
    """
    found: Commands = {}
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, command in action.choices.items():
            options = [entry for part in command._actions for entry in _entries(part)]
            found[name] = (helps.get(name, ""), options)
    return found


def _entries(action: Any) -> list[tuple[str, str, list[str]]]:
    if action.help == argparse.SUPPRESS:
        return []
    choices = [str(choice) for choice in action.choices or []]
    return [(option, action.help or "", choices) for option in action.option_strings or [""]]


def _bash(commands: Commands) -> str:
    cases, values = [], []
    for name, (_, options) in commands.items():
        flags = " ".join(option for option, _, _ in options if option)
        plain = " ".join(
            choice for option, _, choices in options if not option for choice in choices
        )
        cases.append(f'    {name}) words="{flags}"; plain="{plain}" ;;')
        values += [f"    {name}:{o}) words='{' '.join(c)}' ;;" for o, _, c in options if o and c]
    return f"""\
# exempla completion for bash
_exempla() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local words="" plain=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(commands)} --help --version" -- "$current"))
    return
  fi
  case "${{COMP_WORDS[1]}}:$previous" in
{chr(10).join(values) or "    :) ;;"}
  esac
  if [ -n "$words" ]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{chr(10).join(cases)}
  esac
  case "$current" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
    *) if [ -n "$plain" ]; then COMPREPLY=($(compgen -W "$plain" -- "$current"))
       else COMPREPLY=($(compgen -f -- "$current")); fi ;;
  esac
}}
complete -o filenames -F _exempla exempla"""


def _zsh(commands: Commands) -> str:
    listed = "\n".join(f"    '{n}:{_zsh_text(h)}'" for n, (h, _) in commands.items())
    cases = []
    for name, (_, options) in commands.items():
        lines = []
        for option, text, choices in options:
            if option:
                value = f":value:({' '.join(choices)})" if choices else ""
                lines.append(f"        '{option}[{_zsh_text(text)}]{value}'")
            elif choices:
                lines.append(f"        '1:value:({' '.join(choices)})'")
        lines.append("        '*:file:_files'")
        cases.append(f"      {name}) _arguments \\\n" + " \\\n".join(lines) + " ;;")
    return f"""\
#compdef exempla
_exempla() {{
  local -a commands=(
{listed}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
  else
    local name=$words[2]
    shift words; (( CURRENT-- ))
    case $name in
{chr(10).join(cases)}
    esac
  fi
}}
_exempla "$@\""""


def _zsh_text(text: str) -> str:
    for old, new in (("'", "’"), ("[", "("), ("]", ")"), (":", "\\:"), ("%%", "%")):
        text = text.replace(old, new)
    return text


def _fish(commands: Commands) -> str:
    lines = []
    for name, (text, options) in commands.items():
        lines.append(
            f"complete -c exempla -n __fish_use_subcommand -f -a {name} -d '{_fish_text(text)}'"
        )
        for option, help_text, choices in options:
            where = f"complete -c exempla -n '__fish_seen_subcommand_from {name}'"
            given = f" -x -a '{' '.join(choices)}'" if choices else ""
            if option.startswith("--"):
                lines.append(f"{where} -l {option[2:]}{given} -d '{_fish_text(help_text)}'")
            elif option:
                lines.append(f"{where} -s {option[1:]}{given} -d '{_fish_text(help_text)}'")
            elif choices:
                lines.append(f"{where} -f -a '{' '.join(choices)}'")
    return "\n".join(lines)


def _fish_text(text: str) -> str:
    return text.replace("'", "’").replace("%%", "%")
