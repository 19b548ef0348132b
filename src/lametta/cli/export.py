"""``lametta export``: LAME as an ONNX graph."""

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from lametta import methods
from lametta.cli._console import (
    Features,
    Json,
    Logits,
    option_names,
    print_json,
    print_line,
    require,
    user_errors,
)
from lametta.correctors import LAME
from lametta.types import LamettaError


def export(
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The .onnx file to write.")],
    affinity: Annotated[
        str | None, typer.Option(help="knn, rbf or linear; knn by default.")
    ] = None,
    k: Annotated[int | None, typer.Option(help="Neighbors; 5 by default.")] = None,
    direction: Annotated[
        str | None,
        typer.Option(help="Of knn, who pulls on a sample: own (default), reverse or both."),
    ] = None,
    row_sum: Annotated[
        float | None, typer.Option(help="Sum of each row of W, of rbf and linear.")
    ] = None,
    symmetric: Annotated[
        bool | None, typer.Option("--symmetric", help="Average W with its transpose.")
    ] = None,
    weight: Annotated[float | None, typer.Option(help="Factor on W; 1 by default.")] = None,
    iterations: Annotated[int, typer.Option(help="Updates that the graph makes.")] = 20,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL", help="A classifier's .onnx file, to put LAME behind it in one graph."
        ),
    ] = None,
    features: Features = None,
    logits: Logits = None,
    probabilities: Annotated[
        bool | None,
        typer.Option(
            "--probabilities/--no-probabilities",
            help="Whether the model gives probabilities; by default as its graph says.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write LAME as an ONNX graph, for engines without Python.

    Alone, it takes features [N, d] and probs [N, K]; with --model, what the model takes. It gives
    corrected [N, K], the probabilities, and label [N], their classes. A batch of any size is
    corrected as a whole: send what belongs together, and never samples of two streams.

    Example: lametta export lame.onnx --k 5 --iterations 20
    """
    with user_errors():
        require("onnx", "onnx", *(() if model is None else ("onnxruntime",)))
        from lametta.integrations import onnx

        params: dict[str, object] = {"affinity": affinity and affinity.lower(), "k": k}
        params |= {"direction": direction, "row_sum": row_sum}
        params |= {"symmetric": symmetric, "weight": weight}
        params = {name: value for name, value in params.items() if value is not None}
        lame = methods.find("lame")
        for name, message in lame.param_errors(params):
            raise LamettaError(f"--{name.replace('_', '-')} {message}")
        (corrector,) = (cast(LAME, corrector) for corrector in lame.correctors(params))
        options = ("iterations", "model", "features", "logits", "probabilities")
        with option_names(path="OUT", **{option: f"--{option}" for option in options}):
            onnx.export(
                target,
                affinity=corrector.affinity,
                weight=corrector.weight,
                iterations=iterations,
                model=model,
                features=features,
                logits=logits,
                probabilities=probabilities,
            )
        print_line(f"wrote {target}")
        if as_json:
            print_json(_described(target) | {"iterations": iterations, "output": target})


def _described(path: Path) -> dict[str, Any]:
    """What a graph takes and gives: the sides of each tensor, None where one is open."""
    from onnx import load

    graph = load(path, load_external_data=False).graph
    inner = {tensor.name for tensor in graph.initializer}
    return {
        kind: {
            one.name: [
                side.dim_value or side.dim_param or None for side in one.type.tensor_type.shape.dim
            ]
            for one in tensors
            if one.name not in inner
        }
        for kind, tensors in (("inputs", graph.input), ("outputs", graph.output))
    }
