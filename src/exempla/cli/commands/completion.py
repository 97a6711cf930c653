"""Print a completion script for your shell, generated from the commands by shtab.

bash:  exempla completion bash > ~/.local/share/bash-completion/completions/exempla
zsh:   exempla completion zsh  > ~/.zfunc/_exempla      (with ~/.zfunc in your fpath)
fish:  exempla completion fish > ~/.config/fish/completions/exempla.fish
tcsh:  exempla completion tcsh > ~/.exempla.tcsh        (with `source ~/.exempla.tcsh` in ~/.tcshrc)
PowerShell:  exempla completion powershell >> $PROFILE
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    """Add the shell."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish", "tcsh", "powershell"))


def run(options: Namespace) -> int:
    """Print the script."""
    import shtab

    from exempla.cli.main import build_parser

    # Built again now that shtab is loaded: see `exempla.cli.options.completed`.
    print(shtab.complete(build_parser(), options.shell))
    return 0
