"""Tests of the package as a whole."""

import torch  # noqa: F401  # its first import runs ldconfig, which no pure test may
