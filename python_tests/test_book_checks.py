"""The checks of the book find what they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

import check
import commands
import pages


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page of a repository of its own."""
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "PYTHON", ["page.md"])
    (tmp_path / "other.md").write_text('# Two Words: `a_b`\n\n## Two\n\n## Two\n\n- <a id="rule-x"></a> a rule\n')
    return tmp_path / "page.md"


@pytest.mark.parametrize(
    ("link", "error"),
    [
        ("other.md#two-words-a_b", None),
        ("missing.md", "there is no missing.md"),
        ("other.md#three", "other.md has no anchor #three"),
        ("#nowhere", "page.md has no anchor #nowhere"),
    ],
)
def test_links(page: Path, link: str, error: str | None) -> None:
    """Files and anchors; over two lines too."""
    page.write_text(f"# A page\n\nText and [a\nlink]({link}) in it.\n")
    assert check.broken_links(page) == ([f"page.md:3: {error}"] if error else [])


@pytest.mark.parametrize(
    ("block", "error"),
    [
        ("```python\nassert True\n```", None),
        ("<!-- not run: no Ruby here -->\n```ruby\n1\n```", None),
        ("```rust\nfn main() {}\n```", "nothing runs blocks of rust of this page"),
        ("<!-- part of: other.md -->\n```rust,ignore\n## Three\n```", "these lines are not in other.md"),
        ("```toml\na = \n```", "value"),
        ("```sh\nmake test\nmake dinner\n```", "make has no target dinner"),
    ],
)
def test_blocks(page: Path, block: str, error: str | None) -> None:
    """What nothing runs is found."""
    page.write_text(f"# A page\n\n{block}\n")
    wrong = check.wrong_blocks(page)
    assert error in wrong[0] if error else not wrong


def test_the_table_of_contents(page: Path) -> None:
    """A page that is missing there, and one that is there twice."""
    page.write_text("# A page\n")
    listing = page.parent / "SUMMARY.md"
    listing.write_text("- [other](other.md)\n- [again](other.md)\n")
    wrong = check.summary([page, page.parent / "other.md"], listing)
    assert wrong == ["SUMMARY.md: page.md is listed 0 times", "SUMMARY.md: other.md is listed 2 times"]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("make test && make docs", None),
        ("PREFIX=/tmp make install-capi PREFIX=$HOME/.local  # a comment", None),
        ("cargo run -p kvcache-manager --example serve -- --any flag", None),
        ("cargo build -p kvcache-ort --features nothing", "kvcache-ort has no feature nothing"),
        ("python -m kvcache_ops size", None),
        (
            "python -m kvcache_pmx --help && python -m kvcache_ops.nothing",
            "there is no module kvcache_ops.nothing to run",
        ),
        ("pip install 'kvcache_ops[nothing]'", "kvcache_ops has no extra nothing"),
        ("frobnicate --all", "frobnicate is no program that this check knows"),
    ],
)
def test_commands(command: str, error: str | None) -> None:
    """What they name exists in this repository."""
    assert commands.wrong(command) == ([(0, error)] if error else [])


def test_a_block_must_assert_something(tmp_path: Path) -> None:
    """And a failure has the page's line."""
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\nx = 1\n```\n\n```python\ny = 2\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:8"):
        pages.run(page)
    page.write_text("# A page\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as raised:
        pages.run(page)
    assert raised.traceback[-1].lineno + 1 == 8
