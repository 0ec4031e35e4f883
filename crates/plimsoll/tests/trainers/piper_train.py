"""Piper's own training without the callback that wants a model from the network. The arguments are Piper's.

`ModelCheckpoint(monitor="val_mos")` ends the first epoch with an error where the MOS predictor cannot be downloaded, and
no argument removes it.
"""

from piper.train import __main__ as piper

piper._DEFAULT_CALLBACKS[:] = [c for c in piper._DEFAULT_CALLBACKS if c.monitor != "val_mos"]

if __name__ == "__main__":
    piper.main()
