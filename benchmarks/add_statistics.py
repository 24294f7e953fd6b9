"""Give the first model of a run of an earlier version the statistics that its training would keep today.

    python benchmarks/add_statistics.py runs/voc --out models/voc-first

One look at up to 100 images of each class; the weights stay as they are. Lessons that start from the new folder can
then be instant (docs/specification.md, Exact). The run's images must still be where its configuration says.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from comastre.bundle import store
from comastre.config.run_files import CONFIG, step_bundle
from comastre.config.settings import load_config
from comastre.stream.whole_images import some_of_each, whole_images
from comastre.training.parts import default_parts, prepare


def add_statistics(run: Path, out: Path) -> Path:
    """The bundle of the run's first step with statistics, written to `out`."""
    config, parts = load_config(run / CONFIG), default_parts()
    prepared, method = prepare(config, parts), parts.method(config)
    bundle, task = store.load(step_bundle(run, 0)), prepared.scenario.tasks[0]
    method.restore(task, bundle.model, {})  # as after its last iteration
    some = some_of_each(task, prepared.training_set.presence(), method.images_per_class or len(task.images))
    method.gather(bundle.model, lambda: whole_images(prepared.training_set, some, config))
    return store.save(bundle, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run whose first step is finished")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    given = parser.parse_args()
    print(f"with statistics: {add_statistics(given.run, given.out)}")


if __name__ == "__main__":
    main()
