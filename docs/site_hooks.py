"""Hooks of mkdocs: pages of the site that are no files of docs/, and links that leave docs/.

README.md, SECURITY.md, CONTRIBUTING.md, CHANGELOG.md and the notebooks are pages of the site as well; the
API comes from the client. A link to a file of the repository that is no page becomes plain text.
"""

import base64
import json
import os.path
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))
from generate_api import MODULES, page_name, pages  # noqa: E402

TOP = {"README.md": "index.md", "SECURITY.md": "security.md", "CONTRIBUTING.md": "contributing.md",
       "CHANGELOG.md": "changes.md"}
DECISIONS = "design/index.md"
CODE_OR_LINK = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`|\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)", re.M | re.S)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the pages of a folder where the navigation names one."""
    folders = {
        "design/": [DECISIONS, *decisions()],
        "api/": ["api/index.md", *({module: f"api/{page_name(module)}.md"} for module in MODULES)],
    }
    for section in config.nav or []:
        for entry in next(iter(section.values())):
            if isinstance(entry, dict):
                entry.update({name: folders[place] for name, place in entry.items() if place in folders})
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the documents of the top folder, the notebooks, the API and the list of decisions."""
    for name, content in pages().items():
        files.append(File.generated(config, name, content=content))
    for name, page in TOP.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    files.append(File.generated(config, DECISIONS, content=list_of_decisions()))
    for path in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        text, pictures = notebook_page(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes links between files of the repository links between pages of the site."""
    here = page.file.src_uri

    def replaced(found: re.Match[str]) -> str:
        text, target, anchor = found.groups()
        if not target or re.match(r"\w+:", target):
            return found.group()
        there = os.path.normpath(os.path.join(os.path.dirname(source_of(here)), target))
        if files.get_file_from_path(page_of(there)) is None:
            return text if (ROOT / there).exists() else found.group()
        return f"[{text}]({os.path.relpath(page_of(there), os.path.dirname(here))}{anchor or ''})"

    return CODE_OR_LINK.sub(replaced, markdown)


def decisions() -> list[str]:
    """The pages of docs/design, in their order."""
    return sorted(f"design/{path.name}" for path in (ROOT / "docs/design").glob("*.md"))


def list_of_decisions() -> str:
    """A page with a link to each decision, by its title."""
    lines = ["# Decisions", "", "Each page has one question, what was measured, and what was chosen.", ""]
    for name in decisions():
        title = (ROOT / "docs" / name).read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({Path(name).name})")
    return "\n".join(lines) + "\n"


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page, with the pictures that its cells have drawn by the names of their files."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```ipython\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![what the cell draws]({name})")
            else:
                printed = "".join(output.get("text") or data.get("text/plain", ""))
                parts.append(f"```output\n{printed.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


def source_of(page: str) -> str:
    """The path in the repository of a page of the site."""
    return {there: name for name, there in TOP.items()}.get(page, f"docs/{page}")


def page_of(source: str) -> str:
    """The page of the site that shows a file of the repository, or would show it."""
    if source == "docs/design":
        return DECISIONS
    return TOP.get(source) or re.sub(r"\.ipynb$", ".md", source.removeprefix("docs/"))
