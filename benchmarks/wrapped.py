"""What `lametta.torch.wrap` works on: every family of timm, with random weights.

``python benchmarks/wrapped.py --device cuda`` makes the smallest network of each family, compares
its own probabilities with those of ``wrap(net, "source")``, and runs LAME, and TENT with LAME.
"""

import argparse

import timm
import torch

from lametta.torch import Classifier, wrap


def smallest(families: dict[str, list[str]]) -> dict[str, str]:
    """The shortest name of each family, which tends to be its smallest network."""
    return {family: min(names, key=len) for family, names in families.items()}


def tried(name: str, device: str) -> tuple[int, ...]:
    """The shape of the features, if all went well."""
    net = timm.create_model(name, pretrained=False, num_classes=10).to(device).eval()
    channels, height, width = net.default_cfg.get("input_size", (3, 224, 224))
    x = torch.randn(4, channels, height, width, device=device)
    with torch.no_grad():
        own = net(x).softmax(1)
    assert torch.allclose(wrap(net, "source")(x), own, atol=1e-4), "other probabilities"
    wrap(net, "lame")(x)
    adapted = wrap(net, "tent+lame")
    adapted(x)
    adapted.reset()
    with torch.no_grad():
        assert torch.allclose(net(x).softmax(1), own, atol=1e-5), "not given back"
    return tuple(Classifier(net)(x).features.shape[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--most", type=int, default=1000, help="families to try")
    options = parser.parse_args()
    families = {module: timm.list_models(module=module) for module in timm.list_modules()}
    chosen = smallest({family: names for family, names in families.items() if names})
    fine, failed = [], {}
    for family, name in list(chosen.items())[: options.most]:
        try:
            shape = tried(name, options.device)
            fine.append(f"{family} ({name}, features {shape[0]})")
        except Exception as error:  # whatever a network of another library raises
            failed[f"{family} ({name})"] = str(error).splitlines()[0][:160] if str(error) else error
        torch.cuda.empty_cache()
    print(f"{len(fine)} families work: {', '.join(fine)}")
    for family, reason in failed.items():
        print(f"FAILED {family}: {reason}")


if __name__ == "__main__":
    main()
