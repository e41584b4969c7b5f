"""What labels change: the alerts of a watcher on labelled data, with and without a person who answers each of them.

    python benchmarks/audit_labels.py shared/data/logs/hdfs_sessions shared/data/logs/BGL_2k.log

As `live` in `ridgeline audit evaluate`: the detector learns from the normal units of the training part, then scores the
test part in order and learns from all of it. In the second run, each alert is labelled at once by what the data says
about its unit ("bad" or "normal"), as by `ridgeline audit label`. About a minute.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ridgeline.audit.anomaly import Detector
from ridgeline.audit.anomaly.evaluate import load
from ridgeline.audit.anomaly.evaluate.units import Labelled
from ridgeline.audit.watch import make_encoder
from ridgeline.errors import InputError


def watch(data: Labelled, embed: Any, labelling: bool) -> dict[str, int]:
    """Return the counts of alerts and of units found in the test part."""
    detector, entry = Detector(embed), 0
    detector.trust = True
    for unit in data.train:
        if not unit.anomalous:
            detector.score(unit.events, range(entry, entry + len(unit.events)))
            detector.end_sessions() if data.kind == "session" else None
            entry += len(unit.events)
    detector.trust = False
    counts = dict.fromkeys(("alerts", "right", "wrong", "labels", "anomalies"), 0)
    for unit in data.test:
        judgements = detector.score(unit.events, range(entry, entry + len(unit.events)))
        judgements += detector.end_sessions() if data.kind == "session" else []
        entry += len(unit.events)
        alerts = [judgement.entry for judgement in judgements if judgement.alert]
        counts["anomalies"] += unit.anomalous
        if alerts:  # one for a unit, as the incidents of `audit alerts` join them
            counts["alerts"] += 1
            counts["right" if unit.anomalous else "wrong"] += 1
        for alert in dict.fromkeys(alerts) if labelling else ():
            try:
                detector.label(alert, "bad" if unit.anomalous else "normal")
                counts["labels"] += 1
            except InputError:
                pass
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+")
    args = parser.parse_args()
    embed = make_encoder("all-MiniLM-L6-v2", "cpu")
    for path in args.data:
        data = load(path)
        for labelling in (False, True):
            print(json.dumps({"data": data.name, "labelled": labelling, **watch(data, embed, labelling)}), flush=True)


if __name__ == "__main__":
    main()
