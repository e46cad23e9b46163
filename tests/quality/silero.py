"""Silero VAD for 16 kHz in NumPy alone: the probability of speech in each 32 ms of a signal.

The network (<https://github.com/snakers4/silero-vad>, version 5): a window of 512 samples with the 64 before it, a Fourier transform as a convolution, four
convolutions with ReLU, an LSTM cell, a convolution, a sigmoid.
"""
from pathlib import Path

import numpy as np
from safetensors import safe_open

RATE, WINDOW, CONTEXT = 16_000, 512, 64


def load(path):
    with safe_open(Path(path), "np") as file:
        return {name: file.get_tensor(name).astype(np.float32) for name in file.keys()}


def convolved(x, weight, bias, stride, padding):
    """x: channels, samples."""
    x = np.pad(x, ((0, 0), (padding, padding)))
    width = weight.shape[2]
    starts = range(0, x.shape[1] - width + 1, stride)
    columns = np.stack([x[:, start:start + width].ravel() for start in starts], 1)
    y = weight.reshape(weight.shape[0], -1) @ columns
    return y if bias is None else y + bias[:, None]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def probabilities(weights, signal):
    hidden, cell = np.zeros(128, np.float32), np.zeros(128, np.float32)
    before, found = np.zeros(CONTEXT, np.float32), []
    for start in range(0, len(signal) - WINDOW + 1, WINDOW):
        window = signal[start:start + WINDOW]
        x = np.pad(np.concatenate([before, window]), (0, 64), "reflect")[None]
        before = window[-CONTEXT:]
        spectrum = convolved(x, weights["stft_conv.weight"], None, 128, 0)
        x = np.sqrt(spectrum[:129] ** 2 + spectrum[129:] ** 2)
        for layer, stride in (1, 1), (2, 2), (3, 2), (4, 1):
            x = np.maximum(convolved(x, weights[f"conv{layer}.weight"], weights[f"conv{layer}.bias"], stride, 1), 0)
        gates = weights["lstm_cell.weight_ih"] @ x[:, 0] + weights["lstm_cell.bias_ih"] + weights["lstm_cell.weight_hh"] @ hidden + weights["lstm_cell.bias_hh"]
        entry, forget, value, out = np.split(gates, 4)
        cell = sigmoid(forget) * cell + sigmoid(entry) * np.tanh(value)
        hidden = sigmoid(out) * np.tanh(cell)
        y = weights["final_conv.weight"][:, :, 0] @ np.maximum(hidden, 0) + weights["final_conv.bias"]
        found.append(float(sigmoid(y)[0]))
    return np.array(found)


def signal(seconds=30):
    """Syllables of a voice, noise and silence in turns: harmonics of a gliding pitch through three formants."""
    random = np.random.default_rng(7)
    time = np.arange(seconds * RATE) / RATE
    pitch = 120 + 30 * np.sin(2 * np.pi * 0.7 * time) + 10 * np.sin(2 * np.pi * 3.1 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    voice = np.zeros_like(time)
    syllable = (time * 4).astype(int)
    vowels = np.array([[730, 1090, 2440], [270, 2290, 3010], [300, 870, 2240], [530, 1840, 2480], [570, 840, 2410]])
    formants = vowels[random.integers(0, len(vowels), syllable.max() + 1)][syllable]
    for harmonic in range(1, 40):
        frequency = harmonic * pitch
        gain = sum(np.exp(-(((frequency - formants[:, at]) / (80 + 40 * at)) ** 2)) / (1 + at) for at in range(3)) + 0.02
        voice += gain * np.sin(harmonic * phase) / harmonic ** 0.3
    envelope = np.clip(np.sin(np.pi * (time * 4 % 1)), 0, 1) ** 0.6
    speaks = (time % 5) < 2.6
    noise = random.standard_normal(len(time))
    mixed = np.where(speaks, voice * envelope * 0.12, 0) + noise * np.where((time % 10) < 5, 0.002, 0.02)
    return mixed.astype(np.float32)
