"""Parts of timm imported alone are those that a plain import gives; what is left out comes when it is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

HEAVY = ["torch._dynamo", "timm.models.beit", "torchvision.ops.roi_align"]

SHARED = f"""
import json, sys
from hetfl.draws import seeded_library_code
from hetfl.models.parts import part
import torch

def made():
    vit, resnet = part("timm.models.vision_transformer"), part("timm.models.resnet")
    yield vit.VisionTransformer(img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=0)
    yield resnet.ResNet(resnet.BasicBlock, (1, 1, 0, 0), num_classes=0)

with seeded_library_code(0):
    bodies = [body.eval() for body in made()]
    images = torch.rand(2, 3, 16, 16)
    draw = part("timm.layers.weight_init").trunc_normal_(torch.empty(5))
found = [[list(body.state_dict()), body(images).flatten().tolist()] for body in bodies] + [draw.tolist()]
loaded, compiler = [name for name in {HEAVY} if name in sys.modules], None
"""

REPORT = "print(json.dumps([found, loaded, compiler]))"

AFTERWARDS = """
import timm, timm.layers, torchvision
from timm.models import VisionTransformer, create_model
assert type(bodies[0]) is VisionTransformer is timm.models.vision_transformer.VisionTransformer
assert type(bodies[1]) is type(create_model("resnet18"))
assert timm.layers.trunc_normal_ is part("timm.layers.weight_init").trunc_normal_
assert timm.list_models("vit_*", module="vision_transformer") and timm.list_models("beit_*")
assert timm.__version__ == __import__("importlib.metadata").metadata.version("timm")
boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2]])
assert torchvision.ops.nms(boxes, torch.tensor([1.0, 0.5]), 0.5).tolist() == [0]
assert torchvision.models.GoogLeNet
"""

STEP = """
import tempfile
from pathlib import Path
from hetfl.data.inputs import InputSettings
from hetfl.draws import Draws
from hetfl.models.outline import outline
from hetfl.training.sequential import make_optimiser
from hetfl.methods import create
from hetfl.models import build
from hetfl.models.registry import creator, weights_path
from hetfl.tensors import write_tensors
method = create("fedhpl", {"rounds": 1}, 10)
model = build("digits_vit_base.random", 10, method.model_options(), Path("nowhere"))
params = model.init(Draws(0), 0)
phase = method.phases(1)[0]
leaves = {name: params[name].requires_grad_() for name in model.names(phase.trains)}
optimiser = make_optimiser(phase, leaves, {})
optimiser.zero_grad()
model(params | leaves, torch.rand(2, 3, 32, 32)).logits.square().mean().backward()
optimiser.step()
with tempfile.TemporaryDirectory() as folder:  # a residual network with weights, whose own start is not drawn
    body = creator("digits_resnet_small")()
    write_tensors(weights_path("digits_resnet_small", Path(folder)), body.state_dict())
    build("digits_resnet_small", 10, create("fedavg", {}, 10).model_options(), Path(folder))
for name in ("digits_resnet_small", "resnet50.random", "vit_base_patch16_224.random", "digits_vit_small.random"):
    outline(name, 10, create("fedavg", {}, 10).model_options(), InputSettings())
compiler = "torch._dynamo" in sys.modules
"""


FORK = """
import gc, os, sys
gc.disable()  # it would go through all that is imported, again and again
import torch  # which takes longest, and which all programs import first
for program in sys.argv[1:]:
    if not os.fork():
        try:
            exec(program)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def found() -> Any:
    """Parts imported alone, then a step of training, then the whole libraries; and the libraries imported first."""
    programs = [SHARED + STEP + AFTERWARDS + REPORT, "import timm, torchvision" + SHARED + REPORT]
    done = subprocess.run([sys.executable, "-c", FORK, *programs], capture_output=True, text=True)
    assert len(said := done.stdout.splitlines()) == 2, done.stderr[-3000:]
    return [json.loads(line) for line in said]


def test_parts_are_what_a_plain_import_gives(found):
    (alone, of_parts, _), (plain, of_libraries, _) = found
    assert alone == plain
    assert (of_parts, of_libraries) == ([], HEAVY)


def test_the_first_step_weights_from_a_file_and_outlines_import_no_compiler(found):
    assert found[0][2] is False
