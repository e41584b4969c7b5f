"""One harness under atheris: python tests/fuzz/run.py NAME CORPUS [options of libFuzzer]. `make fuzz` runs them all."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def main(name: str, corpus: Path, *options: str) -> None:
    import atheris

    _import_plainly()
    with atheris.instrument_imports(include=["ridgeline.audit", "json", "base64"]):
        from tests.fuzz.harnesses import HARNESSES, seeds
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds(name)):
        (corpus / f"seed-{number}").write_bytes(data)
    atheris.Setup([sys.argv[0], str(corpus), *options], HARNESSES[name])
    atheris.Fuzz()


def _import_plainly() -> None:
    """Have the package found on the path: atheris counts little in what an editable install's own loader brings in."""
    native = importlib.util.find_spec("ridgeline.native")
    if native is None or native.origin is None:
        raise SystemExit("the extension is not built; run: make native")
    sys.meta_path = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
    for name in [name for name in sys.modules if name.partition(".")[0] == "ridgeline"]:
        del sys.modules[name]
    root = Path(__file__).parents[2]
    sys.path[:0] = [str(root), str(root / "src")]
    import ridgeline

    ridgeline.__path__.append(str(Path(native.origin).parent))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
