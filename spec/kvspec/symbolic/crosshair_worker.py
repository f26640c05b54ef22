"""A process that runs CrossHair's own command line on one function after the other.

A line on standard input is a function's qualified name; a line on standard output is what
`crosshair check` says of it, with the CPU time that it took, as JSON. So starting CrossHair costs
nothing a function, and each has its own time. It runs apart, since CrossHair changes the process in
which it runs: it intercepts builtins, and imports what it checks.
"""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from time import process_time

from crosshair.main import unwalled_main


def check(name: str, timeout: str) -> str:
    """What CrossHair says of the function `name`, as a line of JSON."""
    options = ["--analysis_kind=asserts", "--report_all", f"--per_condition_timeout={timeout}"]
    said = io.StringIO()
    start = process_time()
    with redirect_stdout(said), redirect_stderr(said):
        code = unwalled_main(["check", *options, name])
    seconds = process_time() - start
    return json.dumps({"code": code, "seconds": seconds, "lines": said.getvalue().splitlines()})


if __name__ == "__main__":
    for line in sys.stdin:
        print(check(line.strip(), sys.argv[1]), flush=True)
