"""The Python that sandboxed programs run: this project's own interpreter, without its environment.

    Interpreter.here()
    → Interpreter(source=Path("…/3.11.7"), executable="/interpreter/bin/python3.11")

An interpreter under /usr is visible in the sandbox anyway. One that lives elsewhere, as in a home
directory, is shown alone, at a neutral path; the packages of a virtual environment are not shown.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from posttrain.errors import ConfigError

MOUNT = "/interpreter"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """`source` is what has to be shown at `MOUNT`, None for an interpreter under /usr."""

    source: Path | None
    executable: str

    @property
    def environment(self) -> dict[str, str]:
        """What it needs to find its own shared library once it has moved."""
        return {} if self.source is None else {"LD_LIBRARY_PATH": f"{MOUNT}/lib"}

    @classmethod
    def here(cls) -> Interpreter:
        """The interpreter under the running one's virtual environment.

        Raises:
            ConfigError: it is laid out in a way that cannot be shown alone.
        """
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        base = Path(sys.base_prefix).resolve()
        executable = base / "bin" / version
        library = base / "lib" / version / "os.py"
        everything = base in (Path.home(), *Path.home().parents)
        if everything or not executable.is_file() or not library.is_file():
            raise ConfigError(
                f"the sandbox cannot show the Python in {base}: it needs bin/{version} and "
                f"lib/{version} in a directory of their own"
            )
        if base.is_relative_to("/usr"):
            return cls(None, str(executable))
        return cls(base, f"{MOUNT}/bin/{version}")
