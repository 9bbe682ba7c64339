"""The model folder that the page on training by days shows."""

import json
import re
from pathlib import Path

from tests.unit.client.runner.online.streams import CONFIG, run, tables_of

PAGE = Path(__file__).parents[5] / "docs" / "online.md"


def test_the_model_of_the_page_trains_and_counts_clicks(tmp_path: Path) -> None:
    found = re.search(r"```python\n(# model\.py\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    made = tmp_path / "toys" / "clicks"
    for name in ("20260101/0000", "20260101/1200", "20260102/0000", "20260102/1200"):
        (made / "data" / name).mkdir(parents=True)
        (made / "data" / name / "part-0").write_text("1 1 3 7 8 9\n1 0 3 7 8 10\n" * 8)
    (made / "model.py").write_text(found[1])
    (made / "config.yaml").write_text(CONFIG)

    done = run(made)

    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["by_days"]["passes"] == 4
    tables = tables_of(made / "saved" / "20260103" / "0")
    ids = next(each for name, each in tables.items() if name.endswith("/ids"))
    assert ids.tolist() == [7, 8, 9, 10]
