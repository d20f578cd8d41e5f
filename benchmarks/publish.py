"""Draw the charts of all results, and renew their tables in docs/performance.md and docs/scaling.md.

A page holds a table between `<!-- results: STEM -->` and `<!-- end -->`, made from benchmarks/results/STEM.md.
"""

import json
import re
from pathlib import Path

from attnmix.benchmark.results import write_whole
from attnmix.report.attention_cost import attention_cost
from attnmix.report.benchmark import ratio_chart
from attnmix.report.style import png

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "docs" / "performance.md", ROOT / "docs" / "scaling.md")
CHARTS = {"step": ratio_chart, "attention": attention_cost}


def main() -> None:
    for path in sorted(RESULTS.rglob("*.json")):
        draw = CHARTS.get(path.stem.partition("-")[0])
        if draw is not None:
            chart = draw(json.loads(path.read_text(encoding="utf-8"))["rows"])
            print(write_whole(path.with_suffix(".png"), png(chart)).relative_to(ROOT))
    for page in PAGES:
        write_whole(page, renewed(page.read_text(encoding="utf-8"), RESULTS).encode())
        print(page.relative_to(ROOT))


def renewed(page: str, results: Path) -> str:
    """The page with every marked table as the results have it."""

    def table(mark: re.Match[str]) -> str:
        found = (results / f"{mark[2]}.md").read_text(encoding="utf-8").strip()
        return f"{mark[1]}\n{found}\n<!-- end -->"

    return re.sub(r"(<!-- results: (\S+) -->)\n.*?<!-- end -->", table, page, flags=re.DOTALL)


if __name__ == "__main__":
    main()
