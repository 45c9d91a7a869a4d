"""Images per second of a trained classifier, from raw images to labels, against the bare network."""

from __future__ import annotations

import torch

from vcc_infuse.models import SmallConv, WideResNet
from vcc_infuse.training.trainer import Trainer
from vcc_infuse.utils.memory import keep_freed_memory

from .page import Part
from .turns import Maker, Work, take_turns
from .workloads import random_images


def measure_inference(rounds: int, images: int = 256) -> Part:
    """`Predictor.predict` on an array, with normalization and confidence."""
    part = Part("inference", "Inference: raw images in, labels and confidence out")
    data = random_images(32, 10, 2000)
    raw = data.dataset.train.x[:images]
    for name, model in (("WRN-28-2", lambda: WideResNet(28, 2)), ("SmallConv", SmallConv)):
        trainer = Trainer(model(), steps=1, batch_size=4, device="cpu", progress=False)
        trainer.prepare(data)
        predictor = trainer.predictor()
        normalized = torch.from_numpy(raw).permute(0, 3, 1, 2).float() / 255

        def bare(network: torch.nn.Module = predictor.model, x: torch.Tensor = normalized) -> Work:
            keep_freed_memory()
            forward = torch.no_grad()(network.eval())
            return lambda _: forward(x)

        def whole(predict: object = predictor.predict) -> Work:
            keep_freed_memory()
            return lambda _: predict(raw)  # type: ignore[operator]

        makers: dict[str, Maker] = {"bare forward": bare, "predict": whole}
        part.comparisons.append(
            take_turns(f"{name}, {images} images of 32 px", makers, rounds, per="image", count=images)
        )
    part.notes.append("Embedding is in results/embed.md, with its own comparison to the bare forward.")
    return part
