"""Prove and measure everything that needs a GPU. Run: `make gpu`.

First every kernel against float64, side by side since nothing is timed; then ceilings, MaxSim, the
flow, whole queries and the peers, one after the other. A kernel that is not right gets no figure.
The last line is one JSON object; with ``--record`` each figure is a row of ``results/gpu.csv`` as
soon as it is known.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import ceilings, correctness, end_to_end, exact, flow, maxsim, order
from benchmarks.gpu.parts import Part, run_together
from benchmarks.gpu.report import Aim, Report, Skipped, commit_of_checkout
from benchmarks.record import RESULTS

SECONDS = 330.0
GROUPS: dict[str, tuple[Part, ...]] = {
    "ceilings": ceilings.PARTS,
    "maxsim": maxsim.PARTS,
    "flow": (*flow.PARTS, *exact.PARTS),
    "order": order.PARTS,
    "end-to-end": end_to_end.PARTS,
    "peers": maxsim.PEER_PARTS,
}
FLOW_FIGURES = tuple(
    f"flow fused {precision}, B = {size:,}" for precision in flow.PRECISIONS for size in flow.SIZES
)
AIMS = (
    Aim(
        "MaxSim of 10,000 queries, share of the copied bandwidth",
        (maxsim.share_name("ours fp16", 10_000),),
        0.85,
    ),
    Aim(
        "MaxSim of 900 queries, times the faster peer",
        ("maxsim ours fp16, B = 900",),
        1.0,
        divided_by=tuple(f"maxsim {peer}, B = 900" for peer in maxsim.PEERS),
    ),
    Aim("flow, sinkhorn, queries per second", FLOW_FIGURES, 50_000),
    Aim("flow, checked, queries per second", tuple(map(exact.checked_name, exact.SIZES)), 10_000),
    Aim(
        "end to end, token transport, 20 candidates, queries per second",
        (end_to_end.kernels_name("token transport", 20),),
        100_000,
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="prove the script on a CPU")
    parser.add_argument("--record", action="store_true", help="keep the figures as CSV rows")
    parser.add_argument("--csv", type=Path, default=RESULTS / "gpu.csv", help="where to keep them")
    parser.add_argument("--commit", help="of this tree, where git cannot tell")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for everything")
    parser.add_argument(
        "--only", nargs="+", choices=GROUPS, default=list(GROUPS), help="after the checks"
    )
    options = parser.parse_args(arguments)
    if options.tiny and options.record:
        parser.error("--record keeps figures of a GPU only; leave out --tiny.")
    if options.record and not options.csv.parent.is_dir():
        parser.error(f"the folder of --csv must exist; there is no {options.csv.parent}.")

    began = time.monotonic()
    until = began + options.seconds
    csv = options.csv if options.record else None
    report = Report(csv, options.commit or commit_of_checkout())
    checks = (*correctness.PARTS, *flow.CHECKS, *exact.CHECKS, *order.CHECKS)
    run_together(checks, report, options.tiny, until)
    for name, parts in GROUPS.items():
        for part in parts:
            if name in options.only:
                run_together((part,), report, options.tiny, until)
            else:
                report.take(Skipped(part.name, "not asked for"))
    print(report.as_json(AIMS, time.monotonic() - began), flush=True)
    wrong = report.failed or not all(check.passed for check in report.checks)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
