# %% [markdown]
# # A tour of vit_jax
#
# A notebook as a script: open it in VS Code or PyCharm cell by cell, with Jupytext in Jupyter, or
# run it with `python notebooks/tour.py`. It needs no download and takes about a minute on a CPU;
# pictures go to `tour/`.

# %%
import pathlib

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

import vit_jax
from vit_jax.data.sources import open_source
from vit_jax.insight.attention import looks
from vit_jax.models.vit import ViT
from vit_jax.train.config import run_config
from vit_jax.train.flags import load_config
from vit_jax.train.loop import train

matplotlib.use("Agg")
import matplotlib.pyplot as plt

out = pathlib.Path("tour")
out.mkdir(exist_ok=True)

# %% [markdown]
# ## A model
#
# One name is one network. Calling it gives logits, `features` what the head reads. A fresh head is
# zero, so that all classes are alike.

# %%
print(len(vit_jax.list_models()), "models, as", vit_jax.list_models()[:5])
model = vit_jax.create_model("Ti/16", num_classes=10, image_size=64)
logits = model(jnp.zeros((2, 64, 64, 3)))
print(logits.shape, model.features(jnp.zeros((2, 64, 64, 3))).shape)
print(model.config)

# %% [markdown]
# ## Images
#
# A source is numbered examples: `source[i]` is always the same. These are 8x8 pixels; the network
# below wants 48x48, as RGB in [-1, 1].

# %%
digits = open_source("digits", "test", 48)
small = jnp.stack([jnp.asarray(digits[i]["image"], jnp.float32) for i in range(8)])
pixels = np.asarray(jax.image.resize(small, (8, 48, 48, 3), "bilinear")).astype(np.uint8)
labels = [digits.class_names[int(digits[i]["label"])] for i in range(8)]
figure, axes = plt.subplots(1, 8, figsize=(12, 2))
for axis, picture, label in zip(axes, pixels, labels, strict=True):
    axis.imshow(picture)
    axis.set_title(label)
    axis.axis("off")
figure.savefig(out / "digits.png")

# %% [markdown]
# ## Training
#
# What the command line does: a config, changed in a few places, and a folder. Run again, this finds
# its work done.

# %%
config = load_config("configs/demo.py:stage=scratch")
config.update(total="40 steps", checkpoint_every="40 steps")
config.model.depth = 2
config.evaluators.digits.every = "100%"
summary = train(run_config(config), out / "run")
print(f"accuracy on the test split: {summary['metrics']['digits/accuracy']:.1%}")

# %% [markdown]
# ## Using it
#
# A run folder is a model. At another resolution its positions are interpolated.

# %%
trained = vit_jax.load(out / "run")
images = jnp.asarray(pixels, jnp.float32) / 127.5 - 1
guesses = jnp.argmax(trained(images), axis=-1)
print("labels ", *labels)
print("guesses", *(digits.class_names[int(guess)] for guess in guesses))

larger = vit_jax.load(out / "run", image_size=64)
print(larger(jax.image.resize(images, (8, 64, 64, 3), "bilinear")).shape)

# %% [markdown]
# ## What it looks at
#
# Attention rollout, the paper's Fig. 6.

# %%
assert isinstance(trained, ViT)
rollout = looks(trained, pixels).rollout
figure, axes = plt.subplots(2, 8, figsize=(12, 4))
for column in range(8):
    axes[0, column].imshow(pixels[column])
    axes[1, column].imshow(rollout[column], vmin=0)
    axes[0, column].axis("off")
    axes[1, column].axis("off")
figure.savefig(out / "attention.png")

# %% [markdown]
# ## Out again

# %%
vit_jax.save_npz(trained, out / "tour.npz")
again = vit_jax.load(out / "tour.npz")
print("largest difference of logits:", float(jnp.abs(again(images) - trained(images)).max()))
