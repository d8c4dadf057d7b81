"""Made-up results for the tests of tables, queue and store."""

from surge.study.results import Result


def result(row="resnet20-recu", seed=0, last=87.0, **fields):
    """One stored run of the cifar10 table."""
    return Result(
        **{
            "table": "cifar10",
            "row": row,
            "recipe": f"cifar10-{row}",
            "overrides": {},
            "seed": seed,
            "epochs": 600,
            "data": "cifar10, test set",
            "precision": "bf16",
            "metric": "top1",
            "last": last,
            "best": last + 0.25,
            "seconds": 300.0,
            "hardware": "H200",
            "torch": "2.11.0",
            "commit": "abc",
            **fields,
        }
    )


def common(seed=0, **methods):
    """Runs of the table ``common``, by method: the accuracy alone, then that with SURGE."""
    return [
        result(f"resnet20-{method}{suffix}", seed, last, table="common", epochs=60)
        for method, values in methods.items()
        for suffix, last in zip(("", "-surge"), values, strict=False)
    ]
