"""Keep `.env.example` and the README's settings table equal to the fields of `Settings`.

Without arguments it reports each file that differs and exits 1; with `--write` it rewrites them. Settings of this machine do not matter.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from inference_server.config import Settings, as_text

BEGIN, END = "<!-- settings: begin -->\n", "<!-- settings: end -->\n"


def rows() -> list[tuple[str, str, str]]:
    """(NAME, default as written in the environment, description) of every setting, in the order of `Settings`."""
    return [(name.upper(), as_text(field.default), field.description or "") for name, field in Settings.model_fields.items()]


def env_example(_: str = "") -> str:
    """The whole of `.env.example`. An empty value means unset."""
    head = "# Copy to .env and change what you need. Empty means unset. Each name is also a flag: MAX_BATCH_SIZE is --max-batch-size.\n"
    return head + "".join(f"\n# {description}\n{name}={default}\n" for name, default, description in rows())


def readme(text: str) -> str:
    """`text` with a fresh table between its markers. Raises ValueError when the markers are missing."""
    table = "".join(f"| `{name}` | {f'`{default}`' if default else 'unset'} | {description} |\n" for name, default, description in rows())
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}| setting | default | what |\n|---|---|---|\n{table}{END}{after}"


def stale(root: Path) -> dict[Path, str]:
    """The files under `root` that differ from the settings, each with the text that it should have."""
    renderers: dict[str, Callable[[str], str]] = {".env.example": env_example, "README.md": readme}
    wanted: dict[Path, str] = {}
    for name, render in renderers.items():
        path = root / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if render(text) != text:
            wanted[path] = render(text)
    return wanted


def main(argv: list[str]) -> int:
    wanted = stale(Path(__file__).resolve().parent.parent)
    for path, text in wanted.items():
        if "--write" in argv:
            path.write_text(text, encoding="utf-8")
        else:
            print(f"{path.name}: differs from Settings; run scripts/check_settings.py --write")
    return 0 if "--write" in argv else bool(wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
