"""`kvspec new`: a skeleton of an adapter, to be filled in.

Exit codes: 0 written, 2 not written; then one line says why.
"""

from pathlib import Path

import click

from kvspec.doors import Stop
from kvspec.suite.skeleton import skeleton


@click.command("new")
@click.argument("file", type=click.Path(path_type=Path))
def new(file: Path) -> None:
    """Write the skeleton of an adapter to FILE, which must not be there yet.

    The five methods of the core stand as code, those of every other capability as comments.
    """
    if file.suffix != ".py":
        raise Stop(f"{file}: an adapter is a Python file; give it a name that ends in .py")
    text = skeleton(file.name)
    try:
        # Opened so that nothing is overwritten, also where it comes between a look and a deed.
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise Stop(f"{file}: it is there already, and is left as it is") from None
    except OSError as error:
        raise Stop(f"{file}: it cannot be written: {error.strerror}") from None
    click.echo(f"wrote {file}; what is to be written first: kvspec check {file}:Adapter")
