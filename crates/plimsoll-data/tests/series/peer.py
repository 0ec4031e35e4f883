"""Series by numpy and sklearn. `make OUT` writes data and answers, `expect OUT` says what samples and scores must be."""
import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, mean_absolute_error, root_mean_squared_error
from sklearn.preprocessing import StandardScaler

what, out = sys.argv[1:]
WINDOW, HORIZON, STRIDE, GAP, FLAT = 24, 5, 3, 7, 0.004


def table():
    draws = np.random.default_rng(7)
    parts = []
    for symbol, rows in [("ADA", 900), ("BTC", 700), ("ETH", 40)]:
        minutes = np.arange(rows) + (0 if symbol != "ETH" else 880)
        close = 30_000.0 * np.exp(np.cumsum(draws.normal(0, 0.004, rows)))
        parts.append({"time": minutes, "symbol": [symbol] * rows, "close": close, "volume": draws.integers(0, 10**6, rows),
                      "spread": 1e9 + draws.normal(0, 1e-2, rows), "flat": np.full(rows, 0.1)})
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    # Interleaved as a feed is: by time, then by symbol.
    order = np.lexsort((joined["symbol"], joined["time"]))
    return {name: column[order] for name, column in joined.items()}


def files(data):
    columns = dict(data)
    columns["time"] = pa.array(data["time"] * 60_000, pa.timestamp("ms", tz="UTC"))
    columns["symbol"] = pa.array(data["symbol"]).dictionary_encode()
    whole = pa.table(columns)
    for codec, version, dictionary in [("zstd", "2.0", True), ("snappy", "1.0", False), ("none", "2.0", True)]:
        pq.write_table(whole, f"{out}/{codec}.parquet", compression=codec, data_page_version=version,
                       use_dictionary=dictionary, row_group_size=611, data_page_size=1000)
    pa.feather.write_feather(whole, f"{out}/lz4.feather", compression="lz4", chunksize=300)
    pa.feather.write_feather(whole, f"{out}/plain.arrow", compression="uncompressed")
    columns["symbol"] = data["symbol"]
    pa.csv.write_csv(pa.table(columns), f"{out}/a.csv")


def answers():
    draws = np.random.default_rng(9)
    truths = draws.integers(0, 4, 500).astype(np.uint32)
    numbers = draws.normal(size=(500, 5)).astype(np.float32)
    values, guesses = draws.normal(size=(2, 500, 2)).astype(np.float32)
    for name, array in [("truths", truths), ("numbers", numbers), ("values", values), ("guesses", guesses)]:
        array.tofile(f"{out}/{name}.bin")
    best = numbers.argmax(axis=1)
    wide, close = values.astype(np.float64), guesses.astype(np.float64)
    figures = {"accuracy": accuracy_score(truths, best), "macro_f1": f1_score(truths, best, average="macro"),
               "confusion": confusion_matrix(truths, best, labels=range(5)).tolist(),
               "mae": mean_absolute_error(wide, close, multioutput="raw_values").tolist(),
               "rmse": root_mean_squared_error(wide, close, multioutput="raw_values").tolist()}
    json.dump(figures, open(f"{out}/figures.json", "w"))


def expect(data):
    told = json.load(open(f"{out}/told.json"))
    cut = told["cut"] // 60_000_000_000
    names = ["close", "volume", "spread", "flat"]
    matrix = np.stack([data[name].astype(np.float64) for name in names], axis=1)
    before = data["time"] < cut
    share = 1 - before.mean()
    assert 0.24 < share <= 0.25, share
    fitted = StandardScaler().fit(matrix[before])
    mean = np.array([float(scale["mean"]) for scale in told["normalisation"]["all"]])
    std = np.array([float(scale["std"]) for scale in told["normalisation"]["all"]])
    np.testing.assert_allclose(mean, fitted.mean_, rtol=1e-12)
    # sklearn's own sums lose some of a column far from 0.
    np.testing.assert_allclose(std, fitted.scale_, rtol=1e-5)
    np.testing.assert_allclose(std[:3], matrix[before][:, :3].std(axis=0), rtol=1e-9)
    rows = ((matrix - mean) / std).astype(np.float32)
    scale = told["normalisation"]["value_scales"][0]
    for part in ["training", "validation"]:
        inputs, classes, values = [], [], []
        for symbol in ["ADA", "BTC", "ETH"]:
            of_series = data["symbol"] == symbol
            chosen = of_series & (before if part == "training" else ~before)
            own, price = rows[chosen], data["close"][chosen]
            if part == "validation":
                own, price = own[GAP:], price[GAP:]
            if len(own) < WINDOW + HORIZON:
                continue
            windows = np.lib.stride_tricks.sliding_window_view(own, WINDOW, axis=0)[: len(own) - WINDOW - HORIZON + 1 : STRIDE]
            now = price[WINDOW - 1 : len(own) - HORIZON : STRIDE]
            then = price[WINDOW - 1 + HORIZON :: STRIDE]
            change = (then - now) / now
            inputs.append(windows.transpose(0, 2, 1).reshape(len(windows), -1))
            classes.append(np.where(change < -FLAT, 0, np.where(change > FLAT, 2, 1)))
            values.append(change)
        values = np.concatenate(values)
        if part == "training":
            np.testing.assert_allclose([float(scale["mean"]), float(scale["std"])], [values.mean(), values.std()], rtol=1e-9)
        np.concatenate(inputs).astype(np.float32).tofile(f"{out}/{part}.inputs")
        np.concatenate(classes).astype(np.uint32).tofile(f"{out}/{part}.classes")
        ((values - float(scale["mean"])) / float(scale["std"])).astype(np.float32).tofile(f"{out}/{part}.values")


if what == "make":
    files(table())
    answers()
else:
    expect(table())
