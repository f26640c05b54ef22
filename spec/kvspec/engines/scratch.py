"""Where Hypothesis may write while a command runs."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis.configuration import set_hypothesis_home_dir


@contextmanager
def scratch() -> Iterator[None]:
    """A place for what Hypothesis writes, other than the folder of whoever runs this."""
    if "HYPOTHESIS_STORAGE_DIRECTORY" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="kvspec-") as folder:
        set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            set_hypothesis_home_dir(None)
