"""A stream of utterances by speaker: who is talking, in a noisy room, corrected without labels.

The network is Resemblyzer's, an LSTM of 1.4 million parameters that was trained on people; the
voices are eSpeak NG's, each with speed, pitch, words and noise of its own draw. A speaker is known
from three utterances without noise; then they take turns of eight utterances, as people do. Nothing
is downloaded: both are packages of 26 MB,

    pip install resemblyzer espeakng-loader --no-deps
"""

import ctypes
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import espeakng_loader
import numpy as np
import torch

import lametta

VOICES = ("m1", "m3", "m7", "f1", "f2", "f4", "klatt", "croak")
WORDS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "yes",
    "no",
)
RATE = 16_000  # that the network hears; eSpeak speaks at 22,050 Hz
KNOWN, HEARD, TURN, NOISE = 3, 24, 8, 0.3  # utterances; noise as a share of the speech
SCALE = 20  # of cosines to logits

BANDS, WINDOW, HOP = 40, 400, 160  # of the spectrum, as the network was trained on it


class Encoder(torch.nn.Module):
    """From spectra [N, frames, bands] to a vector of length 1 for each."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(BANDS, 256, 3, batch_first=True)
        self.linear = torch.nn.Linear(256, 256)

    def forward(self, spectra: torch.Tensor) -> torch.Tensor:
        _, (last, _) = self.lstm(spectra)
        return torch.nn.functional.normalize(torch.relu(self.linear(last[-1])), dim=1)


net = Encoder()
package = find_spec("resemblyzer")  # not imported, since it would import librosa
assert package is not None
assert package.origin is not None
stored = torch.load(
    Path(package.origin).parent / "pretrained.pt", map_location="cpu", weights_only=True
)
stored = stored["model_state"]
net.load_state_dict({name: x for name, x in stored.items() if not name.startswith("similarity")})

espeak = ctypes.CDLL(espeakng_loader.get_library_path())
spoken_at = espeak.espeak_Initialize(1, 0, espeakng_loader.get_data_path().encode(), 0)
parts: list[np.ndarray] = []


def keep(wave: Any, n: int, _events: object) -> int:
    """Take what eSpeak has made of the text so far."""
    if wave and n > 0:
        parts.append(np.ctypeslib.as_array(wave, (n,)).copy())
    return 0


types = (ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
told = ctypes.CFUNCTYPE(*types)(keep)  # which has to stay for as long as eSpeak calls it
espeak.espeak_SetSynthCallback(told)


def say(voice: str, rng: np.random.Generator) -> np.ndarray:
    """Five words in this voice."""
    parts.clear()
    text = " ".join(rng.choice(WORDS, 5)).encode()
    assert espeak.espeak_SetVoiceByName(f"en-us+{voice}".encode()) == 0
    espeak.espeak_SetParameter(1, int(rng.integers(150, 200)), 0)  # speed
    espeak.espeak_SetParameter(3, int(rng.integers(40, 60)), 0)  # pitch
    espeak.espeak_Synth(text, len(text) + 1, 0, 0, 0, 1, None, None)
    espeak.espeak_Synchronize()
    wave = np.concatenate(parts) / 32768
    at = np.arange(0, len(wave), spoken_at / RATE)[: 2 * RATE]
    return np.pad(np.interp(at, np.arange(len(wave)), wave), (0, 2 * RATE - len(at)))


def mel_filters() -> np.ndarray:
    """Triangles [bands, frequencies] on Slaney's mel scale: linear to 1 kHz, then logarithmic."""
    step, octave = 200 / 3, 27 / np.log(6.4)
    top = 1000 / step + octave * np.log(RATE / 2 / 1000)
    mels = np.linspace(0, top, BANDS + 2)
    edges = np.where(mels < 15, step * mels, 1000 * np.exp((np.maximum(mels, 15) - 15) / octave))
    at, low, middle, high = np.fft.rfftfreq(WINDOW, 1 / RATE), edges[:-2], edges[1:-1], edges[2:]
    rise = (at[:, None] - low) / (middle - low)
    fall = (high - at[:, None]) / (high - middle)
    return np.asarray(2 / (high - low) * np.clip(np.minimum(rise, fall), 0, None)).T


@torch.no_grad()
def embed(wave: np.ndarray) -> np.ndarray:
    """A vector of length 1 for an utterance."""
    wave = 10 ** (-30 / 20) * wave / np.sqrt(np.mean(wave**2))  # as loud as it was trained on
    frames = np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::HOP]
    power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW + 1)[:-1])) ** 2
    return np.asarray(net(torch.tensor(power @ mel_filters().T, dtype=torch.float32)[None])[0])


def unit(rows: np.ndarray) -> np.ndarray:
    """Less the mean of the voices that are known, of length 1."""
    rows = rows - center
    lengths: np.ndarray = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / lengths)


rng = np.random.default_rng(0)
known = np.stack([[embed(say(voice, rng)) for _ in range(KNOWN)] for voice in VOICES]).mean(axis=1)
center = known.mean(axis=0)
heard = []
for voice in VOICES:
    for _ in range(HEARD):
        wave = say(voice, rng)
        heard.append(embed(wave + NOISE * wave.std() * rng.normal(size=len(wave))))
labels, features = np.repeat(np.arange(len(VOICES)), HEARD), unit(np.stack(heard))
logits = SCALE * features @ unit(known).T
probs = np.exp(logits - logits.max(axis=1, keepdims=True))
probs /= probs.sum(axis=1, keepdims=True)

# Turns in any order, and no turns at all.
turns = rng.permutation(np.arange(len(labels)).reshape(-1, TURN)).ravel()
orders = {"turns": turns, "mixed": rng.permutation(len(labels))}


def right(order: np.ndarray, method: str) -> float:
    """The accuracy in this order: the network's own, or corrected one by one or 32 at a time."""
    size = 1 if method == "Prudent, 1 by 1" else 32
    corrector = lametta.LAME() if method == "LAME" else lametta.Prudent()
    answers = [
        probs[rows] if method == "network" else corrector.correct(features[rows], probs[rows]).probs
        for rows in np.split(order, range(size, len(order), size))
    ]
    return float(np.mean(np.concatenate(answers).argmax(axis=1) == labels[order]))


print(f"{len(labels)} utterances, {len(VOICES)} voices {'turns':>8}{'mixed':>8}")
for method in ("network", "LAME", "Prudent, 1 by 1", "Prudent, 32"):
    print(f"{method:24}" + "".join(f"{right(order, method):8.1%}" for order in orders.values()))
